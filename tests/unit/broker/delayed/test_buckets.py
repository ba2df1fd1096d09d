"""The order of delivery of one bucket, and what one mark describes, compared with a list of all messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.delayed import buckets
from broker.delayed.buckets import NOTHING, RECALLED, DelayBucket, Key, progress_value
from remoting.native.vectors import arange, column
from tests.support.plants import Plant, catches

IS_EMPTY = "broker.delayed.buckets:DelayBucket.is_empty"


def see(bucket: DelayBucket, offset: int, *dues: int) -> None:
    """Take in records of these times; a record's position follows from its offset."""
    bucket.seen(offset, column(dues, "q"), 100 * arange(offset, offset + len(dues)))


def taken(bucket: DelayBucket, count: int = 10) -> list[Key]:
    """The keys taken, whose entries name the positions of their records."""
    entries = bucket.take(count, 2**62)
    assert entries[2].tolist() == (100 * entries[1]).tolist()
    return list(zip(*entries[:2], strict=True))


def bucket_with(*dues: int, now_ms: int = 10**9) -> DelayBucket:
    """A bucket that has seen messages due at these times."""
    bucket = DelayBucket(0, 1)
    bucket.open()
    see(bucket, 0, *dues)
    bucket.mark_seen(len(dues), now_ms)
    return bucket


def test_in_order_of_time_then_of_arrival() -> None:
    """Not in order of the queue."""
    bucket = bucket_with(30, 10, 20, 10)
    assert bucket.next_due_ms == 10
    assert taken(bucket) == [(10, 1), (10, 3), (20, 2), (30, 0)]
    assert bucket.next_due_ms is None


def test_nothing_before_its_time() -> None:
    """The horizon is the time of the call."""
    bucket = bucket_with(30, 10, now_ms=29)
    assert taken(bucket) == [(10, 1)]
    bucket.mark_seen(2, 30)
    assert taken(bucket) == [(30, 0)]


def test_nothing_that_an_unseen_message_might_precede() -> None:
    """Two were added and one was seen: only what is due before the first one was seen may be delivered."""
    bucket = DelayBucket(0, 1)
    bucket.open()
    bucket.mark_seen(1, 100)
    bucket.mark_seen(2, 200)
    see(bucket, 0, 150)
    assert taken(bucket) == []
    see(bucket, 1, 120)
    assert taken(bucket) == [(120, 1), (150, 0)]


def test_nothing_is_delivered_before_the_first_look() -> None:
    """A bucket that was just opened."""
    bucket = DelayBucket(0, 1)
    bucket.open()
    bucket.mark_seen(1, 100)
    assert taken(bucket, 1) == []
    assert not bucket.is_empty(1)


def test_what_was_put_back_is_returned_again() -> None:
    """In the same order."""
    bucket = bucket_with(1, 2)
    bucket.put_back(bucket.take(2, 2**62))
    assert taken(bucket, 1) == [(1, 0)]
    assert taken(bucket, 1) == [(2, 1)]


def test_a_restart_knows_what_was_delivered() -> None:
    """The value has mark, floor and count."""
    bucket = bucket_with(5, 3, 9)
    keys = taken(bucket, 2)
    value = progress_value(keys[-1], bucket.floor, 2)
    again = DelayBucket(0, 1, value)
    assert (again.mark, again.floor, again.delivered) == ((5, 0), 0, 2)
    again.open()
    see(again, 0, 5, 3, 9)
    again.mark_seen(3, 100)
    assert taken(again) == [(9, 2)]
    assert DelayBucket(0, 1).mark == NOTHING


def test_what_was_appended_again_counts_only_at_its_new_place() -> None:
    """Below the floor nothing waits, not even what is in memory already."""
    bucket = bucket_with(5, 6)
    bucket.moved(2, 0)
    see(bucket, 2, 5)
    see(bucket, 3, 6)
    bucket.mark_seen(4, 100)
    assert taken(bucket) == [(5, 2), (6, 3)]
    far = DelayBucket(0, 1)
    far.moved(7, 0)
    assert far.open() == 7


@catches(
    Plant(
        "recalls-go-with-the-floor",
        "broker.delayed.buckets:DelayBucket.moved",
        "{offset: value for offset, value in self.recalled.items() if offset >= floor}",
        "{}",
    ),
    Plant("recalls-stay-for-ever", "broker.delayed.buckets:DelayBucket.moved", "if offset >= floor}", "}"),
)
def test_what_was_recalled_stays_so_when_the_oldest_are_moved() -> None:
    """Retention appends what waits below the floor again; what lies above it, recalled ones too, is as it was."""
    bucket = DelayBucket(0, 1, None, {1: RECALLED, 4: RECALLED})
    bucket.open()
    see(bucket, 0, 10, 20, 30, 40, 50)
    bucket.moved(3, 0)
    assert not bucket.is_waiting((50, 4))
    assert bucket.is_waiting((40, 3))
    assert bucket.recalled == {4: RECALLED}


def test_unreadable_records_are_skipped() -> None:
    """The cursor passes them and never moves back."""
    bucket = bucket_with(5)
    bucket.skip(4)
    bucket.skip(2)
    assert bucket.cursor == 4
    bucket.mark_seen(4, 10)
    bucket.take(1, 2**62)
    assert bucket.is_empty(4)
    assert not bucket.is_empty(5)


@catches(
    Plant("not-all-was-read", IS_EMPTY, "self.cursor == next_offset and", ""),
    Plant("some-did-not-fit", IS_EMPTY, "self._beyond is None and", ""),
    Plant("some-still-wait", IS_EMPTY, "and not len(self._heap)", ""),
)
def test_a_bucket_is_removed_when_nothing_in_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue goes with it: not while a record was not read, waits in memory, or had no room there."""
    monkeypatch.setattr(buckets, "KEPT_MAX", 4)
    bucket = DelayBucket(0, 1)
    assert not bucket.is_empty(0), "it was never read"
    bucket.open()
    see(bucket, 0, 10, 20, 30, 40, 50)
    bucket.mark_seen(5, 10**9)
    assert not bucket.is_empty(5), "all wait"
    for key in taken(bucket, 2):
        bucket.delivered_up_to(key, 1)
    assert not bucket.is_empty(5), "three had no room"
    while bucket.next_due_ms is not None or bucket.must_rescan:
        if bucket.must_rescan:
            bucket.open()
            see(bucket, 0, 10, 20, 30, 40, 50)
            bucket.mark_seen(5, 10**9)
            assert not bucket.is_empty(5), "three still wait"
        for key in taken(bucket, 2):
            bucket.delivered_up_to(key, 1)
    assert not bucket.is_empty(6), "one more was added"
    assert bucket.is_empty(5)


def test_memory_is_bounded_and_nothing_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What did not fit is read again when its time comes."""
    monkeypatch.setattr(buckets, "KEPT_MAX", 8)
    dues = [(7 * number) % 101 for number in range(60)]
    bucket = DelayBucket(0, 1)
    got: list[Key] = []
    looks = 0
    while len(got) < len(dues):
        start = bucket.open()
        looks += start == 0
        for offset in range(start, len(dues)):
            see(bucket, offset, dues[offset])
            assert len(bucket._heap) <= 8
        bucket.mark_seen(len(dues), 1_000)
        keys = taken(bucket, 3)
        if keys:
            bucket.delivered_up_to(keys[-1], len(keys))
            got += keys
        else:
            assert bucket.must_rescan
            assert not bucket.is_empty(len(dues))
    assert got == sorted((due, offset) for offset, due in enumerate(dues))
    assert looks > 3
    assert bucket.is_empty(len(dues))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(0, 30)),
            st.tuples(st.just("see"), st.integers(1, 3)),
            st.tuples(st.just("pass"), st.integers(1, 4)),
            st.tuples(st.just("tick"), st.integers(1, 10)),
            st.tuples(st.just("crash"), st.just(0)),
        ),
        max_size=80,
    ),
    st.integers(2, 6),
)
def test_every_message_once_and_in_time_whatever_happens_between(steps: list[tuple[str, int]], most: int) -> None:
    """Puts, slow confirmation, small memory and crashes; the mark alone says what was delivered."""
    kept, buckets.KEPT_MAX = buckets.KEPT_MAX, most
    try:
        _run(steps)
    finally:
        buckets.KEPT_MAX = kept


def _run(steps: list[tuple[str, int]]) -> None:
    now = 0
    queue: list[int] = []
    confirmed = 0
    delivered: list[int] = []
    bucket = DelayBucket(0, 1)
    for step, number in [*steps, ("see", 100), ("tick", 100), *[("pass", 5)] * 300]:
        if step == "put":
            queue.append(now + number)
        elif step == "tick":
            now += number
        elif step == "see":
            confirmed = min(len(queue), confirmed + number)
        elif step == "crash":
            bucket = DelayBucket(0, 1, progress_value(bucket.mark, bucket.floor, bucket.delivered))
        else:
            bucket.mark_seen(len(queue), now)
            cursor = bucket.open()
            see(bucket, cursor, *queue[cursor:confirmed])
            keys = taken(bucket, number)
            assert all(due <= now for due, _ in keys)
            if keys:
                bucket.delivered_up_to(keys[-1], len(keys))
            delivered += [offset for _, offset in keys]
    assert sorted(delivered) == list(range(len(queue)))
    assert bucket.delivered == len(queue)
    assert bucket.is_empty(len(queue))
