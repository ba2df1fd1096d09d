"""Planted bugs: each is one flush left out or one step taken too early. `power_cuts` must detect all of them.

The keys are the arguments of `--plant`; the value patches the modules of this process permanently.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from broker.replication.follower import Write
from broker.replication.log_following import MasterStream
from broker.store import log_store, parts
from broker.store.append import replica_writer
from broker.store.append.raw_part import RawPart
from broker.store.append.replica_writer import ReplicaWriter
from broker.store.index import index_flusher, run
from broker.store.keys import key_index
from broker.store.log import commit_log, epoch_file, metadata
from broker.store.log.commit_log import CommitLog, LogRepair, Segment
from broker.store.log_store import LogStore
from broker.store.parts import Truncation
from broker.store.recovery import log_end
from broker.store.state import state_tables
from broker.store.upkeep.retention import Retention
from controller.consensus import journal
from controller.consensus.journal import Journal
from runtime import files, format_file

Plant = Callable[[], None]
EVERYTHING = 1 << 62


class Without:
    """A module some of whose functions do nothing."""

    def __init__(self, module: ModuleType, *names: str) -> None:
        self._module, self._names = module, names

    def __getattr__(self, name: str) -> Any:
        return nothing if name in self._names else getattr(self._module, name)


def nothing(*_: object, **__: object) -> None:
    """The effect of a forgotten call."""


def _set(place: object, name: str, value: object) -> None:
    getattr(place, name)  # a plant whose place has moved must fail
    setattr(place, name, value)


def _write(path: Path, pieces: Iterable[bytes], *, mode: int = 0o644, content: bool, name: bool) -> None:
    """Replace a file as `atomic_write` does, with `content` and `name` made durable or not."""
    temporary = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
        if content:
            os.fsync(file.fileno())
    temporary.replace(path)
    if name:
        files.fsync_dir(path.parent)


def _content_not_flushed(module: ModuleType, file: str | None = None) -> Plant:
    """The file `file` (every one without it) that `module` replaces gets its name before its bytes are on the disk."""
    real = module.atomic_replace

    def replace(path: Path, data: bytes, *, mode: int = 0o644) -> None:
        if file in {None, path.name}:
            _write(path, (data,), mode=mode, content=False, name=True)
        else:
            real(path, data, mode=mode)

    return lambda: _set(module, "atomic_replace", replace)


def position_after_flush() -> None:
    """The log reports as durable everything that is written when the flush has returned."""

    def sync(log: CommitLog) -> int:
        with log._sync_lock:
            for segment in log._between(log.durable, log.end):
                log._faults.hit("log.fsync")
                segment.sync()
            log.durable = log.end
            return log.durable

    _set(CommitLog, "sync", sync)


def replaced_name_not_flushed() -> None:
    """No file that is replaced atomically gets its name flushed."""

    def write(path: Path, pieces: Iterable[bytes], *, mode: int = 0o644) -> None:
        _write(path, pieces, mode=mode, content=True, name=False)

    for module in (files, state_tables, journal):
        _set(module, "atomic_write", write)


def snapshot_not_flushed() -> None:
    """The snapshot of the state has its name before its bytes are on the disk."""

    def write(path: Path, pieces: Iterable[bytes], *, mode: int = 0o644) -> None:
        _write(path, pieces, mode=mode, content=False, name=True)

    _set(state_tables, "atomic_write", write)


def offsets_not_flushed() -> None:
    """The MANIFEST names a file of offsets whose bytes are not on the disk."""

    def save(path: Path, offsets: Any) -> None:
        def replace(where: Path, data: bytes, *, mode: int) -> None:
            _write(where, (data,), mode=mode, content=False, name=True)

        real, run.atomic_replace = run.atomic_replace, replace
        try:
            saved(path, offsets)
        finally:
            run.atomic_replace = real

    saved = run.save_offsets
    _set(index_flusher, "save_offsets", save)


def parents_not_flushed() -> None:
    """The directories above a new store are created and not flushed."""
    _set(log_store, "make_directory", lambda path, mode: path.mkdir(mode=mode, parents=True, exist_ok=True))


def segment_dropped_early() -> None:
    """A segment is deleted before what was appended again from it is on the disk."""
    step, real = Retention.step, Retention._drop

    def hasty(retention: Retention, now_ms: int, _flushed: int) -> None:
        retention._confirmed = lambda: EVERYTHING
        step(retention, now_ms, EVERYTHING)

    assert real is not None
    _set(Retention, "step", hasty)


def journal_head_cut_early() -> None:
    """Entries are cut off for a snapshot that is not on the disk."""
    _set(journal, "fsync_dir", nothing)
    _content_not_flushed(journal)()


def journal_cut_not_flushed() -> None:
    """Entries that were cut off may come back."""
    cut = Journal.cut_tail

    def cut_tail(each: Journal, place: int) -> None:
        real = journal.os
        journal.os = Without(os, "fsync")  # type: ignore[attr-defined]
        try:
            cut(each, place)
        finally:
            journal.os = real  # type: ignore[attr-defined]

    _set(Journal, "cut_tail", cut_tail)


def journal_name_not_flushed() -> None:
    """A journal that was replaced may be the former one again."""
    _set(journal, "atomic_write", lambda path, pieces: _write(path, pieces, content=True, name=False))


def _within(owner: type, method: str, place: object, name: str) -> None:
    """While `method` runs, `name` has no effect."""
    real = getattr(owner, method)

    def run(*arguments: Any) -> Any:
        kept = getattr(place, name)
        _set(place, name, nothing)
        try:
            return real(*arguments)
        finally:
            _set(place, name, kept)

    _set(owner, method, run)


def _replaced_unflushed(caller: ModuleType, name: str, module: ModuleType) -> None:
    """The files that `caller` replaces through `name` are not flushed, neither bytes nor names."""
    real = getattr(caller, name)

    def replace(path: Path, data: bytes, *, mode: int = 0o600) -> None:
        _write(path, (data,), mode=mode, content=False, name=False)

    def run(*arguments: Any) -> Any:
        kept, module.atomic_replace = module.atomic_replace, replace  # type: ignore[attr-defined]
        try:
            return real(*arguments)
        finally:
            module.atomic_replace = kept  # type: ignore[attr-defined]

    _set(caller, name, run)


def cut_before_lowered() -> None:
    """The log is truncated before the files that report it durable are lowered."""
    lower = Truncation._lower

    def hasty(cut: Truncation, position: int) -> None:
        if position:
            LogRepair(cut._log).truncate(position)
        lower(cut, position)

    _set(Truncation, "_lower", hasty)


def new_epoch_late() -> None:
    """The entry of a new epoch is on the disk only after its first bytes."""
    note, write = ReplicaWriter._note_epoch, ReplicaWriter.append_raw

    def append_raw(writer: ReplicaWriter, part: RawPart) -> int:
        end = write(writer, part)
        note(writer, part)
        return end

    _set(ReplicaWriter, "_note_epoch", nothing)
    _set(ReplicaWriter, "append_raw", append_raw)


def written_acknowledged() -> None:
    """What is written is acknowledged before it is flushed."""
    act = MasterStream._act

    def hasty(stream: MasterStream, *doing: Any) -> None:
        act(stream, *doing)
        if any(isinstance(each, Write) for each in doing[1]):
            stream.kept(stream._following.log_copy.store.end_position)

    _set(MasterStream, "_act", hasty)


STORE: dict[str, Plant] = {
    "position-after-flush": position_after_flush,
    "segment-name": lambda: _set(commit_log, "fsync_dir", nothing),
    "replaced-name": replaced_name_not_flushed,
    "durable-mark": lambda: _set(metadata, "os", Without(os, "fdatasync")),
    "segment-flush": lambda: _set(Segment, "sync", nothing),
    "recovered-not-flushed": lambda: _set(LogRepair, "sync_from", nothing),
    "segment-dropped-early": segment_dropped_early,
    "parent-directories": parents_not_flushed,
    "format": _content_not_flushed(format_file, format_file.FORMAT_NAME),
    "checkpoint": _content_not_flushed(metadata, metadata.CHECKPOINT_NAME),
    "epochs": _content_not_flushed(epoch_file, epoch_file.NAME),
    "manifest": _content_not_flushed(run, run.MANIFEST_NAME),
    "offsets": offsets_not_flushed,
    "index-run": lambda: _set(run, "os", Without(os, "fsync")),
    "key-manifest": _content_not_flushed(key_index, key_index.MANIFEST_NAME),
    "snapshot": snapshot_not_flushed,
}
"""What is done to a store."""
REPLICA: dict[str, Plant] = {
    "cut-log": lambda: _within(LogStore, "_rebuild", Segment, "sync"),
    "cut-names": lambda: _within(LogStore, "_rebuild", commit_log, "fsync_dir"),
    "cut-removals": lambda: _set(parts, "fsync_dir", nothing),
    "cut-index": lambda: _replaced_unflushed(parts, "lower_index", run),
    "cut-keys": lambda: _replaced_unflushed(parts, "lower_keys", key_index),
    "cut-epochs": lambda: _replaced_unflushed(parts, "save_epochs", epoch_file),
    "cut-checkpoint": lambda: _replaced_unflushed(parts, "save_checkpoint", metadata),
    "cut-mark": lambda: _replaced_unflushed(parts, "lower_mark", metadata),
    "cut-before-lowered": cut_before_lowered,
    "cut-quarantine": lambda: _replaced_unflushed(parts, "save_quarantine", log_end),
    "new-epoch": lambda: _replaced_unflushed(replica_writer, "save_epochs", epoch_file),
    "new-epoch-late": new_epoch_late,
    "written-acknowledged": written_acknowledged,
}
"""What is done to a replica."""
JOURNAL: dict[str, Plant] = {
    "journal-flush": lambda: _set(Journal, "sync", nothing),
    "journal-cut": journal_cut_not_flushed,
    "journal-head": journal_head_cut_early,
    "journal-name": journal_name_not_flushed,
}
"""What is done to a controller's journal."""
