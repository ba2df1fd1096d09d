"""Chunks are found by offset, never overlap, and stay below the limit."""

from __future__ import annotations

from mqtt_proxy.bridge.cache import RECORD_OVERHEAD_BYTES, Chunk, Feed, RecordCache, parse_records
from tests.support.records import make_mqtt_record


def chunk(feed: Feed, first: int, count: int) -> Chunk:
    """`count` small records from `first` on."""
    return Chunk(feed, first, memoryview(make_mqtt_record(b"a/b", b"x") * count))


def test_records_are_split() -> None:
    """Topic, payload, flags and start of each."""
    one = make_mqtt_record(b"a/b", b"payload")
    found = parse_records(memoryview(one + make_mqtt_record(b"c", b"", flags=8)))
    assert [(topic, bytes(body), flags, start) for topic, body, flags, start in found] == [
        (b"a/b", b"payload", 9, 0),
        (b"c", b"", 8, len(one)),
    ]


def test_find_covers_exactly_the_chunks() -> None:
    """Before, inside, between and behind."""
    cache, feed = RecordCache(1 << 20), Feed(1)
    early, late = chunk(feed, 10, 5), chunk(feed, 20, 5)
    cache.add(late)
    cache.add(early)
    assert [cache.find(feed, offset) for offset in (9, 10, 14, 15, 19, 20, 24, 25)] == [
        None, early, early, None, None, late, late, None,
    ]  # fmt: skip
    assert (feed.next_known(9), feed.next_known(10), feed.next_known(20)) == (10, 20, None)


def test_overlapping_and_empty_chunks_are_not_kept() -> None:
    """A reader that raced another pulls again; the index stays exact."""
    cache, feed = RecordCache(1 << 20), Feed(1)
    cache.add(chunk(feed, 10, 5))
    for other in (chunk(feed, 12, 1), chunk(feed, 8, 3), chunk(feed, 14, 5), chunk(feed, 3, 0)):
        cache.add(other)
    assert [one.first for one in feed.chunks] == [10]


def test_the_longest_unused_goes_first_and_the_newest_stays() -> None:
    """The limit holds, but a single chunk above it is still given to its reader."""
    feed = Feed(1)
    size = chunk(feed, 0, 1).size_bytes
    cache = RecordCache(2 * size)
    for first in (0, 1):
        cache.add(chunk(feed, first, 1))
    assert cache.find(feed, 0) is not None
    cache.add(chunk(feed, 2, 1))
    assert [one.first for one in feed.chunks] == [0, 2]
    cache.add(chunk(feed, 5, 10))
    assert [one.first for one in feed.chunks] == [5]
    assert cache.size_bytes == feed.chunks[0].size_bytes > 10 * RECORD_OVERHEAD_BYTES
    cache.drop_feed(feed)
    assert (cache.size_bytes, feed.chunks) == (0, [])


def test_news_wake_followers_once_and_never_go_back() -> None:
    """An older end is no news."""

    class Sleeper:
        woken = 0

        def wake(self) -> None:
            self.woken += 1

    feed, sleeper = Feed(1), Sleeper()
    feed.followers[sleeper] = 1  # type: ignore[index]
    feed.advance(5)
    feed.advance(5)
    feed.advance(3)
    assert (feed.max_offset, sleeper.woken) == (5, 1)
