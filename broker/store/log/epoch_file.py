"""What a store is opened as, and which epoch wrote which part of its log: (epoch, position of its first byte).

    Role()              a node by itself: every start raises the epoch by one
    Role(epoch=e)       the master of a group in epoch e, which the group's controller has given out
    Role(replica=True)  a replica of a group
    EPOCHS              one sealed line of JSON: {"epochs": [[epoch, start], ...]}, oldest first

An epoch ends where the next one starts, the last one at the end of the log. Replicas compare these lists to find where
their logs part. Invariant: epochs and starts both rise; an entry is durable before the first byte of its epoch, so that
no byte of the log lies under an epoch that did not write it; an entry that starts where another one wrote nothing takes
its place. In a group only what is known to be confirmed is shown, even after a restart. An unreadable or
missing file is rebuilt from the records. Thread rule: plain values; saving blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from broker.store.errors import CorruptIndex
from broker.store.log.commit_log import CommitLog, Segment
from broker.store.log.metadata import open_sealed_json, sealed_json
from remoting.native import core as native
from remoting.native.contracts import Progress
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.record import HEADER
from runtime.files import atomic_replace

WRITER, REPLICA = "writer", "replica"
UNLIMITED = 2**63 - 1
"""A confirm limit that limits nothing."""


@dataclass(frozen=True, slots=True)
class Role:
    """A role; `epoch` is given to the master of a group only."""

    replica: bool = False
    epoch: int | None = None

    @property
    def grouped(self) -> bool:
        """Whether other nodes take part in confirming."""
        return self.replica or self.epoch is not None


def role_of(name: str, epoch: int | None) -> Role:
    """Return the role of that name. Raises LocalMisuse."""
    if name == WRITER:
        return Role(epoch=epoch)
    if name != REPLICA or epoch is not None:
        raise LocalMisuse(f'role "{name}" with epoch {epoch}: "{WRITER}", or "{REPLICA}" without an epoch')
    return Role(replica=True)


NAME = "EPOCHS"
Epoch = tuple[int, int]
"""Epoch and the log position of its first byte."""
_PIECE_BYTES = 64 * 1024
"""A piece of the log that is walked record by record only when an epoch begins in it."""


def save_epochs(directory: Path, epochs: Sequence[Epoch]) -> None:
    """Replace the file durably. Raises OSError."""
    atomic_replace(directory / NAME, sealed_json({"epochs": [list(each) for each in epochs]}), mode=0o600)


def load_epochs(directory: Path) -> list[Epoch] | None:
    """Return the entries, None when there is no file. Raises CorruptIndex."""
    value: Any = open_sealed_json(directory / NAME)
    if value is None:
        return None
    try:
        epochs = [(int(epoch), int(start)) for epoch, start in value["epochs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndex(directory / NAME, f"it lacks {error}") from error
    for before, after in pairwise(epochs):
        if before[0] >= after[0] or before[1] >= after[1]:
            raise CorruptIndex(directory / NAME, f"epoch {after[0]} at {after[1]} does not follow {before}")
    return epochs


def with_epoch(epochs: Sequence[Epoch], epoch: int, start: int) -> list[Epoch]:
    """Return the entries with a further one; entries that start there or behind wrote nothing and are replaced."""
    kept = below(epochs, start)
    assert not kept or kept[-1][0] < epoch, (kept, epoch)
    return [*kept, (epoch, start)]


def below(epochs: Sequence[Epoch], position: int) -> list[Epoch]:
    """Return the entries of a log that was cut at `position`: an epoch that starts there has no bytes left."""
    return [each for each in epochs if each[1] < position]


def recovered(epochs: Sequence[Epoch], begin: int, end: int) -> list[Epoch]:
    """Return the entries of a log that was found to reach from `begin` to `end`.

    An entry behind the end lost its bytes; one that ends at or before the begin has expired, all but the last.
    """
    held = [each for each in epochs if each[1] <= end]
    starts = [start for _, start in held]
    return held[max(0, bisect_right(starts, begin) - 1) :]


def epoch_at(epochs: Sequence[Epoch], position: int) -> tuple[int, int | None]:
    """Return the epoch that wrote the byte at `position` and where the next one starts, None for the last."""
    at = bisect_right(epochs, position, key=lambda each: each[1]) - 1
    assert at >= 0, (epochs, position)
    return epochs[at][0], epochs[at + 1][1] if at + 1 < len(epochs) else None


def epochs_of(log: CommitLog, end: int) -> list[Epoch]:
    """Return the entries derived from the records below `end`; damaged stretches are skipped."""
    found: list[Epoch] = []
    for segment in log.segments:
        if segment.base >= end:
            break
        found += _changes(segment, min(end, segment.end), found[-1][0] if found else 0)
    return found


def _changes(segment: Segment, end: int, epoch: int) -> Iterator[Epoch]:
    """Yield where, in one segment, records of a higher epoch than the one before begin."""
    position = segment.base
    while position < end:
        cut = min(position + _PIECE_BYTES, end)
        seen = _scan(segment, cut, position, epoch)
        if seen.position == position and cut < end:  # one record is larger than the piece, or damaged
            seen = _scan(segment, end, position, epoch)
        if seen.position == position:
            return
        if seen.epoch > epoch:
            yield from _walk(segment, position, seen.position, epoch)
        position, epoch = seen.position, seen.epoch


def _scan(segment: Segment, cut: int, position: int, epoch: int) -> Progress:
    before = Progress(position, position, epoch, 0, 0, group_open=False)
    return native.core.scan(segment.view, segment.base, cut - segment.base, before)


def _walk(segment: Segment, position: int, end: int, epoch: int) -> Iterator[Epoch]:
    while position < end:
        head = HEADER.unpack_from(segment.view, position - segment.base)
        if head[3] > epoch:
            epoch = head[3]
            yield epoch, position
        position += head[0]


class EpochsFound:
    """The file at a start: checked against the log, rebuilt where needed, with an entry for this start.

    `last`: epoch of the last record, `known`: of the last start. A standalone node does not scan a log for
    epochs that are not needed: without the file it runs without, and the first start in a group creates it. When
    `settle` returns, the entry of this start is on the disk, and every other one agrees with the records.
    """

    def __init__(self, directory: Path, log: CommitLog, last: int, known: int, events: Any) -> None:
        self._directory = directory
        self._log = log
        self._last = last
        self._known = known
        self._events = events

    def settle(self, role: Role) -> list[Epoch]:
        """Return the entries for a start in `role`. Raises LocalMisuse: the epoch given was used before; OSError."""
        found = self._load()
        if found is None and not role.grouped and self._log.end > self._log.begin:
            (self._directory / NAME).unlink(missing_ok=True)
            return [(self._next(), self._log.end)]
        entries = self._rebuilt() if found is None else found
        if role.epoch is not None and entries and role.epoch <= max(self._last, entries[-1][0]):
            raise LocalMisuse(f"epoch {role.epoch} for a log that has seen epoch {max(self._last, entries[-1][0])}")
        if not role.replica:
            epoch = role.epoch if role.epoch is not None else max(self._next(), (entries or [(0, 0)])[-1][0] + 1)
            entries = with_epoch(entries, epoch, self._log.end)
        if not role.replica or found is None:
            save_epochs(self._directory, entries)
        return entries

    def _next(self) -> int:
        return max(self._last, self._known) + 1

    def _load(self) -> list[Epoch] | None:
        """Return the entries of the file as far as the log has them, None when the file is incomplete."""
        log = self._log
        try:
            loaded = load_epochs(self._directory)
        except CorruptIndex as error:
            self._events.warning("epochs_unreadable", reason=str(error))
            return None
        if loaded is None:
            return None
        entries = recovered(loaded, log.begin, log.end)
        if log.end == log.begin or (entries and entries[0][1] <= log.begin and entries[-1][0] >= self._last):
            return entries
        self._events.warning("epochs_incomplete", last_record=self._last, entries=len(entries))
        return None

    def _rebuilt(self) -> list[Epoch]:
        """Return the entries derived from the records, and the epoch of a start that wrote none."""
        entries = epochs_of(self._log, self._log.end)
        if self._known > (entries[-1][0] if entries else 0):
            entries = with_epoch(entries, self._known, self._log.end)
        if entries:
            self._events.info("epochs_rebuilt", entries=len(entries), first=entries[0][0], last=entries[-1][0])
        return entries
