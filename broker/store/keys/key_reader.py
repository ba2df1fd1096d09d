"""Looks up records by topic and key, newest first, never at or above the confirm position.

Each candidate the index names is read, its checksum checked, and compared with what was asked; a look-up reads at most
`EXAMINED_MAX` records and stops at the wanted count or size. Invariant: what is returned has the topic, the key and a
store time in the range; a record that fails its checks is left out and counted. Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from broker.store.errors import CorruptLog
from broker.store.index.reader import Reader
from broker.store.index.time_search import stored_ms
from broker.store.keys.key_index import Found, KeyIndex
from broker.store.log.commit_log import CommitLog
from remoting.native.reference.keys import store_second
from remoting.protocol.records.record import RecordView
from remoting.protocol.records.record_keys import has_key, key_hash

EXAMINED_MAX = 4096
"""Records read for one look-up: what messages with the same number but another key, or rot, can cost at most."""


@dataclass(slots=True)
class KeyMatches:
    """What a look-up found: records, the newest first."""

    records: list[memoryview] = field(default_factory=list)
    examined: int = 0
    unreadable: int = 0
    """Candidates that fail their checks; they may or may not have the key."""
    complete: bool = True
    """False when the look-up ended at `EXAMINED_MAX` before it had seen everything."""


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
            try:
                record = self._reader.read_at(position)
            except CorruptLog:
                matches.unreadable += 1
                continue
            if record is None or not self._matches(record, question):
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
        begin, last = np.uint32(store_second(question.begin_ms)), np.uint32(store_second(question.end_ms))
        first, end = int(seconds.searchsorted(begin)), int(seconds.searchsorted(last, side="right"))
        low, high = int(seconds.searchsorted(last)), end
        while low < high:  # the last second may go beyond the time asked for, with any number of records
            middle = (low + high) // 2
            at_ms = stored_ms(self._log, int(positions[middle]))
            if at_ms is not None and at_ms > question.end_ms:
                high = middle
            else:
                low = middle + 1
        return first, max(first, low)
