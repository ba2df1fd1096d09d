"""Cuts the log of a replica where it parts from its master's, and everything that was made of what goes.

In this order: what says that the log is durable, or holds anything, beyond the cut (tail file, MANIFESTs, SNAPSHOT,
QUARANTINE, CHECKPOINT, DURABLE) is lowered; the log is cut, newest file first, the rest zeroed; then EPOCHS.
Invariant: a crash in between leaves a directory that opens: with the former log, or a beginning of it, whose epochs are
listed; so the same cut is found again. When `cut_back` returns no byte behind the cut comes back, whatever happens to
the machine. Thread rule: with the parts of the store at rest; blocks.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import dropwhile
from pathlib import Path
from typing import Any

from broker.store.errors import CorruptIndex
from broker.store.index import manifest as queue_manifest
from broker.store.index.queue_index import TAIL_NAME
from broker.store.index.run import Run, run_path
from broker.store.keys import key_manifest
from broker.store.keys.key_run import KeyRun, key_run_path
from broker.store.log.checkpoint import Checkpoint, save_checkpoint
from broker.store.log.commit_log import CommitLog, LogRepair
from broker.store.log.durable_mark import Mark, lower_mark
from broker.store.log.epoch_file import Epoch, below, save_epochs
from broker.store.recovery.log_end import keep_torn_tail
from broker.store.recovery.quarantine import DamagedRange, Quarantine, load_quarantine, save_quarantine
from broker.store.state.state_snapshot import NAME as SNAPSHOT
from broker.store.state.state_snapshot import load_snapshot
from runtime.faults import FaultPoints
from runtime.files import fsync_dir


class Truncation:
    """One cut of the data directory `directory`, whose log is open and not used by anything else now."""

    def __init__(
        self, directory: Path, log: CommitLog, epochs: Sequence[Epoch], faults: FaultPoints, events: Any
    ) -> None:
        self._directory = directory
        self._log = log
        self._epochs = epochs
        self._faults = faults
        self._events = events

    def cut_back(self, position: int) -> None:
        """Let the log end at `position`, which lies in it. Raises OSError."""
        log, kept = self._log, below(self._epochs, position)
        self._events.warning("log_truncated", position=position, dropped_bytes=log.end - position)
        self._lower(position)
        keep_torn_tail(log, self._directory, position, self._last(self._epochs), self._events)
        self._faults.hit("truncate.log")
        LogRepair(log).truncate(position)
        self._faults.hit("truncate.epochs")
        self._settle(kept)

    def begin_anew(self, position: int) -> None:
        """Drop everything and let an empty log begin at `position`. Raises OSError."""
        log = self._log
        self._events.warning("log_reset", position=position, dropped_bytes=log.end - log.begin)
        self._lower(0)
        self._faults.hit("truncate.log")
        LogRepair(log).restart(position)
        self._faults.hit("truncate.epochs")
        self._settle([])

    def _lower(self, position: int) -> None:
        """Let nothing say any more that there is a log from `position` on."""
        _remove(self._directory / "index" / TAIL_NAME)
        self._faults.hit("truncate.tail")
        covered = lower_index(self._directory / "index", position)
        self._faults.hit("truncate.index")
        lower_keys(self._directory / key_manifest.DIRECTORY, position)
        self._lower_snapshot(position)
        self._faults.hit("truncate.state")
        self._lower_quarantine(position)
        durable = min(covered, position)
        epoch = self._last(self._epochs)
        save_checkpoint(self._directory, Checkpoint(epoch, durable, clean=False))
        self._faults.hit("truncate.mark")
        lower_mark(self._directory, Mark(epoch, durable))

    def _lower_snapshot(self, position: int) -> None:
        folder = self._directory / "state"
        try:
            snapshot = load_snapshot(folder)
        except CorruptIndex:
            return
        if snapshot is not None and snapshot.position > position:
            _remove(folder / SNAPSHOT)

    def _lower_quarantine(self, position: int) -> None:
        try:
            known = load_quarantine(self._directory)
        except CorruptIndex:
            known = Quarantine()
        left: list[DamagedRange] = [
            replace(each, end=min(each.end, position)) for each in known if each.start < position
        ]
        if left != list(known):
            save_quarantine(self._directory, left)

    def _settle(self, epochs: Sequence[Epoch]) -> None:
        """Save what is left of the epochs, and let no mark name one that was cut off."""
        save_epochs(self._directory, epochs)
        self._faults.hit("truncate.settle")
        last = self._last(epochs)
        save_checkpoint(self._directory, Checkpoint(last, self._log.begin, clean=False))
        lower_mark(self._directory, Mark(last, self._log.begin))

    @staticmethod
    def _last(epochs: Sequence[Epoch]) -> int:
        return epochs[-1][0] if epochs else 0


def lower_index(directory: Path, position: int) -> int:
    """Drop the runs of the queue index that hold anything from `position` on; return up to where the rest covers.

    Only where the offsets file says nothing of what goes; otherwise the whole index is built anew by the next start.
    Of a log that is dropped as a whole (`position` 0) everything goes: where queues stood says nothing of the next one.
    """
    if not position:
        _remove(directory / queue_manifest.NAME)
        return 0
    try:
        manifest = queue_manifest.load_manifest(directory)
        if manifest is None:
            return 0
        runs = [Run(run_path(directory, file_id)) for file_id in manifest.runs]
    except (CorruptIndex, OSError):
        manifest, runs = None, []
    gone = list(dropwhile(lambda run: not _holds(run, position), runs))
    if manifest is not None and not gone and manifest.end_position <= position:
        return manifest.end_position
    older = manifest is not None and (not manifest.offsets_id or (gone and manifest.offsets_id < gone[0].file_id))
    if manifest is None or not older or any(run.level for run in gone):
        _remove(directory / queue_manifest.NAME)
        return 0
    end = min(gone[0].first_position, position) if gone else position
    kept = manifest.runs[: len(runs) - len(gone)]
    confirmed = manifest.confirmed_position
    if confirmed is not None and confirmed >= end:
        confirmed = None
    queue_manifest.save_manifest(
        directory, replace(manifest, end_position=end, runs=kept, confirmed_position=confirmed)
    )
    return end


def _holds(run: Run, position: int) -> bool:
    """Whether a run holds anything from `position` on: holes stand where damage begins, behind what was read there."""
    return run.end_position > position or bool((run.positions >= position).any())


def lower_keys(directory: Path, position: int) -> None:
    """Drop the runs of the key index that hold anything from `position` on; what is left of the log is read again."""
    try:
        manifest = key_manifest.load_key_manifest(directory)
        if manifest is None or manifest.end_position <= position:
            return
        runs = [KeyRun(key_run_path(directory, file_id)) for file_id in manifest.runs]
    except (CorruptIndex, OSError):
        shutil.rmtree(directory, ignore_errors=True)
        return
    gone = [run for run in runs if run.end_position > position]
    end = min(gone[0].first_position, position) if gone else position
    kept = manifest.runs[: len(runs) - len(gone)]
    key_manifest.save_key_manifest(directory, replace(manifest, end_position=end, runs=kept))


def _remove(path: Path) -> None:
    """Delete a file, durably, if it is there."""
    path.unlink(missing_ok=True)
    if path.parent.exists():
        fsync_dir(path.parent)
