"""A compiled filter: which records of a blob pass, with as little Python per record as possible.

Fields of the fixed header (times, the tag's hash) are compared for all records at once; the rest is examined one by
one, texts by the compiled gather if there is one. Verdicts on topics are cached. Invariant: records that cannot be
judged are kept (see the room's README). Thread rule: one thread at a time per Judge, because of its caches.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from remoting.filtering import expressions
from remoting.native.choice import Choice, choose
from remoting.native.vectors import Column, full, isin, nonzero, view
from remoting.protocol.bodies.pull_body import Buffer, RowFilter, decode_row_filter
from remoting.protocol.errors import CorruptRecord, LocalMisuse
from remoting.protocol.records import record, topics
from remoting.protocol.records.record import RecordView

JUDGES_MAX = 16
"""Compiled filters cached; the least recently used is dropped first."""
TOPICS_REMEMBERED_MAX = 16_384
"""MQTT topics whose verdict one filter caches; beyond it all are dropped."""
LOOK_MAX, LOOK_PURE_MAX, LOOK_SQL_MAX = 32_768, 4_096, 2_048
"""Most records examined per request, which blocks the loop for a few milliseconds: with the compiled functions, without
them, and for SQL, which needs the properties."""

_KEYS, _MQTT_TOPIC = 1, 3
_BORN_AT, _TAG_HASH_AT = 24, 68


def _compiled() -> Any:
    from remoting.native.compiled import columns as compiled

    return compiled


choice: Choice[Any] = choose(_compiled, lambda: None)
core: Any = choice.core
"""The compiled functions, None when the pure twin is used."""


@lru_cache(JUDGES_MAX)
def judge_of(encoded: bytes) -> Judge:
    """Return the judge of an encoded RowFilter. Raises RemoteViolation (malformed) or LocalMisuse (expression)."""
    return Judge(decode_row_filter(encoded))


class Judge:
    """Decides which records pass one filter."""

    def __init__(self, row_filter: RowFilter) -> None:
        for one in row_filter.mqtt:
            wrong = topics.validate_filter(one)
            if wrong is not None:
                raise LocalMisuse(f"filter {one!r}: {wrong}")
        self._filters = tuple(one.encode() for one in row_filter.mqtt)
        self._tags = frozenset(tag.encode() for tag in row_filter.tags)
        self._tag_hashes = frozenset(record.tag_hash(tag) for tag in self._tags)
        self._keys = {key.encode(): True for key in row_filter.keys}
        self._sql = expressions.parse_sql92(row_filter.sql) if row_filter.sql else None
        self._born = (row_filter.born_from_ms, row_filter.born_until_ms)
        self._known: dict[bytes, bool] = {b"": False}
        self.look_max = LOOK_SQL_MAX if self._sql is not None else LOOK_PURE_MAX if core is None else LOOK_MAX

    def mask(self, blob: Buffer, starts: Column) -> Column:
        """Return a mask of the records that begin at `starts` (multiples of 8): those that pass."""
        words = view(blob, "I", len(blob) // 4)
        messages = words[(starts >> 2) + 1] == record.MESSAGE
        wanted = messages & self._by_header(blob, words, starts)
        at = nonzero(wanted)
        for test in (self._by_tag, self._by_key, self._by_topic, self._by_sql):
            if len(at):
                at = at[test(blob, starts[at])]
        # A batch has no topics; whether its rows pass another filter is known only when it is unpacked.
        found = full(len(starts), 0, "B") if self._filters else ~messages
        found[at] = 1
        return found

    def _by_header(self, blob: Buffer, words: Column, starts: Column) -> Column:
        """Compare the time of birth, and the tag by its hash."""
        found = _all_of(starts)
        begin, end = self._born
        if begin is not None or end is not None:
            born = view(blob, "q", len(blob) // 8)[(starts + _BORN_AT) >> 3]
            found &= born >= (-(1 << 63) if begin is None else begin)
            found &= born < ((1 << 63) - 1 if end is None else end)
        if self._tags:
            found &= isin(words[(starts + _TAG_HASH_AT) >> 2], self._tag_hashes)
        return found

    def _by_tag(self, blob: Buffer, starts: Column) -> Column:
        if not self._tags:
            return _all_of(starts)
        return _each(blob, starts, lambda view: view.tags in self._tags)

    def _by_key(self, blob: Buffer, starts: Column) -> Column:
        if not self._keys:
            return _all_of(starts)
        sound = _sound(blob, starts)
        if sound is None:
            return _each(blob, starts, lambda view: view.keys in self._keys)
        found = _all_of(starts)
        core.judge_texts(*sound, _KEYS, self._keys, found)
        return found

    def _by_topic(self, blob: Buffer, starts: Column) -> Column:
        if not self._filters:
            return _all_of(starts)
        if len(self._known) > TOPICS_REMEMBERED_MAX:
            self._known = {b"": False}
        sound = _sound(blob, starts)
        if sound is None:
            return _each(blob, starts, lambda view: self._covers(view.mqtt_topic or b""))
        found = _all_of(starts)
        lacking = core.judge_texts(*sound, _MQTT_TOPIC, self._known, found)
        if lacking:
            for topic in lacking:
                self._covers(topic)
            core.judge_texts(*sound, _MQTT_TOPIC, self._known, found)
        return found

    def _covers(self, topic: bytes) -> bool:
        known = self._known.get(topic)
        if known is None:
            known = self._known[topic] = any(topics.matches(one, topic) for one in self._filters)
        return known

    def _by_sql(self, blob: Buffer, starts: Column) -> Column:
        predicate = self._sql
        if predicate is None:
            return _all_of(starts)
        return _each(blob, starts, lambda view: predicate(properties_of(view)) is True)


def properties_of(view: RecordView) -> expressions.Properties:
    """Return the properties of a record by name; of a repeated one the last."""
    found: dict[str, str] | None = None

    def get(name: str) -> str | None:
        nonlocal found
        if found is None:
            found = {
                key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in view.properties()
            }
            for key, value in (("TAGS", view.tags), ("KEYS", view.keys)):
                if value:
                    found[key] = value.decode("utf-8", "replace")
        return found.get(name)

    return get


def _all_of(starts: Column) -> Column:
    """Return the mask of all of them."""
    return full(len(starts), 1, "B")


def _sound(blob: Buffer, starts: Column) -> tuple[memoryview, Column] | None:
    """Return the records in the form of the compiled functions; None when these cannot be used."""
    if core is None:
        return None
    data, places = memoryview(blob).cast("B"), starts.astype("q")
    return None if core.first_bad(data, places, False) >= 0 else (data, places)


def _each(blob: Buffer, starts: Column, test: Any) -> Column:
    """Test record by record; one whose sizes contradict each other is kept."""
    whole = memoryview(blob)
    found = _all_of(starts)
    for index, start in enumerate(starts):
        try:
            found[index] = test(RecordView(whole, start))
        except CorruptRecord:
            continue
    return found
