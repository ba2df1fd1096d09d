"""Planted bugs of the store: what it must make durable, or undo, with one thing left out while a schedule runs.

They show that the disk that forgets and the checkers judge the shipped store. A name is what `--plant` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from broker.roles.group_node import Actions, GroupNode
from broker.store import parts
from broker.store.index import run
from broker.store.log import commit_log
from broker.store.log.commit_log import CommitLog, LogRepair
from broker.store.recovery.opening import Opening
from tests.sim.cluster.broker import Build


@contextmanager
def _instead(owner: Any, name: str, other: Callable[..., Any]) -> Iterator[None]:
    """Let `other` stand where `owner` has something of this name."""
    former = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, former)


def _nothing(*_arguments: object, **_named: object) -> None:
    """Do nothing."""


def _reports_what_is_written(log: CommitLog) -> int:
    log.durable = log.end
    return log.end


def _keeps_the_index(directory: Any, _position: int) -> int:
    manifest = run.load_manifest(directory)
    return 0 if manifest is None else manifest.end_position


def _all_is_confirmed(opening: Opening, *_index_and_blocks: object) -> int:
    return opening._log.end


class ServesDamaged(GroupNode):
    """A master serves at once, whatever its log has lost."""

    def _opened(self, *, is_damaged: bool) -> Actions:
        return super()._opened(is_damaged=is_damaged and self.epoch is None)


def _build(plant: Callable[[], AbstractContextManager[object]]) -> Build:
    return Build(is_stored=True, planted=plant)


PLANTS: dict[str, Build] = {
    "reports-before-fdatasync": _build(partial(_instead, CommitLog, "sync", _reports_what_is_written)),
    "recovered-tail-not-flushed": _build(partial(_instead, LogRepair, "sync_from", _nothing)),
    "names-of-files-not-flushed": _build(partial(_instead, commit_log, "fsync_dir", _nothing)),
    "mark-not-cut": _build(partial(_instead, parts, "lower_mark", _nothing)),
    "starts-with-all-confirmed": _build(partial(_instead, Opening, "_hide", _all_is_confirmed)),
    "serves-damaged": Build(is_stored=True, node=ServesDamaged),
}

SELDOM: dict[str, Build] = {
    "index-not-cut": _build(partial(_instead, parts, "lower_index", _keeps_the_index)),
}
"""Bugs that need several accidents at once: long runs show them."""
