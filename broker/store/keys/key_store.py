"""The key index as the rest of the store uses it: taking in keys, upkeep, lookup.

Records are looked up by topic and key, newest first. Each candidate the index names is read, its checksum checked, and
compared with the question; a lookup reads at most `EXAMINED_MAX` records and stops at the wanted count or size.
Invariant: keys are taken in by the append that wrote their records, so whatever is confirmed can be found; `take` is
called for every append, even without keys, because it advances the position up to which all keys are known.
What is returned lies below the confirm position and has the topic, the key and a store time in the range; a record that
fails its checks is left out and counted. Thread rule: loop thread.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.store.errors import CorruptIndex
from broker.store.index.absence import Absence
from broker.store.index.reader import Reader, stored_ms
from broker.store.keys.key_index import DIRECTORY, Found, KeyFlusher, KeyIndex
from broker.store.log.commit_log import CommitLog
from broker.store.log.index_thread import IndexThread
from broker.store.settings import StoreSettings
from remoting.native import core as native
from remoting.native.contracts import Encoded, Progress
from remoting.native.reference.scan import store_second
from remoting.protocol.records.properties import has_key, key_hash
from remoting.protocol.records.record import RecordView
from runtime.faults import FaultPoints

EXAMINED_MAX = 4096
"""Records read for one lookup: what messages with the same number but another key, or rot, can cost at most."""


@dataclass(slots=True)
class KeyMatches:
    """What a lookup found: records, the newest first."""

    records: list[memoryview] = field(default_factory=list)
    examined: int = 0
    unreadable: int = 0
    """Candidates that fail their checks; they may or may not have the key."""
    complete: bool = True
    """False when the lookup ended at `EXAMINED_MAX` before it had seen everything."""


@dataclass(frozen=True, slots=True)
class KeyQuestion:
    """What is looked up; times are store times in ms, both ends included."""

    topic: bytes
    key: bytes
    begin_ms: int = 0
    end_ms: int = 2**62
    count_max: int = 64
    bytes_max: int = 4 * 1024 * 1024
    unique_only: bool = False
    """Only records whose unique key it is."""
    begins_in: Callable[[int], bool] = lambda _queue: True
    """Whether messages of the topic have this queue first: one for very many queues has further records, with others,
    that are left out."""


class KeyReader:
    """The read side of a key index."""

    def __init__(self, log: CommitLog, keys: KeyIndex, reader: Reader) -> None:
        self._log = log
        self._keys = keys
        self._reader = reader

    def find(self, question: KeyQuestion) -> KeyMatches:
        """Return the records that match, the newest first; the first one whatever its size."""
        matches = KeyMatches()
        size_left = question.bytes_max
        for position in self._candidates(question):
            if len(matches.records) == question.count_max:
                break
            if matches.examined == EXAMINED_MAX:
                matches.complete = False
                break
            matches.examined += 1
            record = self._reader.read_at(position)
            if isinstance(record, Absence):
                matches.unreadable += record is Absence.DAMAGED
                continue
            if not self._matches(record, question):
                continue
            size_left -= len(record)
            if size_left < 0 and matches.records:
                break
            matches.records.append(record)
        return matches

    @staticmethod
    def _matches(record: memoryview, question: KeyQuestion) -> bool:
        view = RecordView(record)
        if not question.begin_ms <= view.store_ms <= question.end_ms:
            return False
        dispatch = view.dispatch()
        if dispatch and not question.begins_in(dispatch[0][0]):
            return False
        return has_key(view, question.topic, question.key, unique_only=question.unique_only)

    def _candidates(self, question: KeyQuestion) -> Iterator[int]:
        """Yield the positions of what may match, the newest first."""
        number = key_hash(question.topic, question.key)
        for found in self._keys.find(number, self._log.begin, self._reader.confirm_position):
            first, end = self._in_time(found, question)
            yield from reversed(found[0][max(first, end - EXAMINED_MAX - 1) : end].tolist())

    def _in_time(self, found: Found, question: KeyQuestion) -> tuple[int, int]:
        """Return the bounds of the entries stored in the time asked for; store times rise with positions."""
        positions, seconds = found
        begin, last = store_second(question.begin_ms), store_second(question.end_ms)
        first, end = seconds.searchsorted(begin), seconds.searchsorted(last, side="right")
        low, high = seconds.searchsorted(last), end
        while low < high:  # the last second may go beyond the time asked for, with any number of records
            middle = (low + high) // 2
            at_ms = stored_ms(self._log, positions[middle])
            if at_ms is not None and at_ms > question.end_ms:
                high = middle
            else:
                low = middle + 1
        return first, max(first, low)


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

        `log` is recovered; `on_failed` gets the errors of the index thread. Raises OSError, CorruptIndex.
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
        index.end_position = batch.end_position  # before a run is made: it must not hold more than it claims
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
    """Return the key index in the data directory `data`; None when it is switched off; its files are deleted then.

    Every record taken in is checked, because a start need not have scanned this part of the log. Damage is passed
    over: what is unreadable there cannot be found by its key. An unreadable index, or one that covers more than the log
    holds, is rebuilt; when this returns, all keys of the log are known, and nothing has been appended.

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
        seen = native.core.scan(
            window, segment.base, len(window), Progress(position, position, 0, 0, 0, group_open=False)
        )
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
