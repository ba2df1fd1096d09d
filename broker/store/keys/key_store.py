"""The door of the key index for the rest of the store: take in, keep small, look up.

Invariant: keys are taken in by the append that wrote their records, so whatever is confirmed can be found; `take` is
told of every append, also of one without keys, because the position up to which all keys are known moves on with it.
Thread rule: loop thread.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.store import hot
from broker.store.errors import CorruptIndex
from broker.store.index.reader import Reader
from broker.store.keys.key_flusher import KeyFlusher
from broker.store.keys.key_index import KeyIndex
from broker.store.keys.key_manifest import DIRECTORY
from broker.store.keys.key_reader import KeyMatches, KeyQuestion, KeyReader
from broker.store.log.commit_log import CommitLog
from broker.store.log.index_thread import IndexThread
from broker.store.settings import StoreSettings
from remoting.native.contracts import Encoded, Progress
from runtime.faults import FaultPoints


class KeyStore:
    """The key index of one store."""

    def __init__(self, index: KeyIndex, flusher: KeyFlusher, reader: KeyReader, log: CommitLog) -> None:
        self._index = index
        self._flusher = flusher
        self._reader = reader
        self._log = log

    @classmethod
    def open(
        cls,
        data: Path,
        settings: StoreSettings,
        log: CommitLog,
        reader: Reader,
        thread: IndexThread,
        faults: FaultPoints,
        events: Any,
        on_failed: Callable[[Exception], None],
    ) -> KeyStore | None:
        """Return the key index of the data directory `data`, None when it is switched off.

        `log` is recovered; what `on_failed` hears is an error of the index thread. Raises OSError, CorruptIndex.
        """
        index = open_key_index(data, settings, log, thread, faults, events)
        if index is None:
            return None
        flusher = KeyFlusher(index, thread, log.sync, settings, faults, on_failed)
        return cls(index, flusher, KeyReader(log, index, reader), log)

    def take(self, batch: Encoded) -> None:
        """Take in the keys of an append that is in the log. Raises OSError: full, and no run can be written.

        Appends without keys may be left out: between appends the index covers the log to its end.
        """
        index = self._index
        if batch.keyed:
            self._take_from_log(batch.first_position, batch.end_position)
        index.end_position = batch.end_position  # before a run is made: it must not hold more than it says
        if index.full_chunks:
            self._flusher.flush_if_full()

    def _take_from_log(self, position: int, end: int) -> None:
        """Take in the records in [position, end) as they were just written: large batches are kept nowhere else."""
        while position < end:
            segment = self._log.segment_at(position)
            assert segment is not None, position
            stop = min(segment.end, end)
            self._index.take(segment.view, segment.base, position, stop)
            position = stop

    def step(self, indexed: int, taken: int) -> None:
        """Do what is due; the queue index covers the log with runs up to `indexed`, altogether up to `taken`."""
        self._index.end_position = taken
        self._flusher.step(indexed, self._log.begin)

    def settle(self, taken: int) -> None:
        """Start the last run, up to log position `taken`; nothing is appended any more, the index thread is idle."""
        self._index.end_position = taken
        self._flusher.merging = False
        self._flusher.flush()

    def find(self, question: KeyQuestion) -> KeyMatches:
        """Return the confirmed records that match, the newest first."""
        return self._reader.find(question)

    def metrics(self) -> dict[str, int]:
        """Return gauges and totals."""
        return {
            "key_index_runs": len(self._index.runs),
            "key_index_entries": self._index.entry_count + sum(run.entry_count for run in self._index.runs),
            "key_index_runs_written_total": self._flusher.runs_written_total,
            "key_index_merges_total": self._flusher.merges_total,
        }


def open_key_index(
    data: Path, settings: StoreSettings, log: CommitLog, thread: IndexThread, faults: FaultPoints, events: Any
) -> KeyIndex | None:
    """Return the key index in the data directory `data`; None, and its files gone, when it is switched off.

    Every record taken in is checked, because a start need not have looked at this part of the log. Damage is passed
    over: what is unreadable there cannot be found by its key. An unreadable index, or one that covers more than the log
    holds, is built anew; when this returns, all keys of the log are known, and nothing has been appended.

    Raises OSError, CorruptIndex (a run that was just written is unreadable).
    """
    if not settings.key_index:
        shutil.rmtree(data / DIRECTORY, ignore_errors=True)
        return None
    index = _open(data / DIRECTORY, settings, log, events)
    flusher = KeyFlusher(index, thread, lambda: 0, settings, faults, _raise)  # what was recovered is on the disk
    position = index.end_position
    while position < log.end and (segment := log.segment_at(position)) is not None:
        stop = min(segment.end, log.end)
        window = segment.view[: stop - segment.base]
        seen = hot.core.scan(window, segment.base, len(window), Progress(position, position, 0, 0, 0, group_open=False))
        index.take(window, segment.base, position, seen.position)
        if seen.reason:
            events.warning("keys_not_indexed", start=seen.position, end=stop, reason=seen.reason)
        position = index.end_position = stop
        flusher.flush_if_full()
        thread.drain()  # one author of the MANIFEST: this flusher is done before the store's own begins
    return index


def _raise(error: Exception) -> None:
    raise error


def _open(directory: Path, settings: StoreSettings, log: CommitLog, events: Any) -> KeyIndex:
    try:
        index = KeyIndex(directory, settings.key_index_entries, log.begin)
        if index.manifest.end_position <= log.end:
            return index
        reason = f"it covers the log to {index.manifest.end_position}, which ends at {log.end}"
    except CorruptIndex as error:
        reason = str(error)
    events.warning("key_index_rebuilt", reason=reason)
    shutil.rmtree(directory)
    return KeyIndex(directory, settings.key_index_entries, log.begin)
