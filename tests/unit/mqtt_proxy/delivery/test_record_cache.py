"""Chunks are found by offset, never overlap, and stay below the limit."""

from __future__ import annotations

from mqtt_proxy.delivery.record_cache import (
    NEAR_RECORDS_MAX,
    RECORD_OVERHEAD_BYTES,
    Chunk,
    Feed,
    RecordCache,
    parse_records,
    split_pushed,
)
from remoting.protocol.frames.codes import RequestCode
from tests.support.records import make_mqtt_record
from tests.unit.mqtt_proxy.rig import running, settle


def chunk(feed: Feed, first: int, count: int) -> Chunk:
    """`count` small records starting with `first`."""
    return Chunk(feed, first, memoryview(make_mqtt_record(b"a/b", b"x") * count))


def test_records_are_split() -> None:
    """By topic, payload, flags and start of each."""
    one = make_mqtt_record(b"a/b", b"payload")
    found = parse_records(memoryview(one + make_mqtt_record(b"c", b"", flags=8)))
    assert [(topic, bytes(body), flags, start) for topic, body, flags, start in found] == [
        (b"a/b", b"payload", 9, 0),
        (b"c", b"", 8, len(one)),
    ]


def test_find_covers_exactly_the_chunks() -> None:
    """Before, inside, between and behind them."""
    cache, feed = RecordCache(1 << 20), Feed(1)
    early, late = chunk(feed, 10, 5), chunk(feed, 20, 5)
    cache.add(late)
    cache.add(early)
    assert [cache.find(feed, offset) for offset in (9, 10, 14, 15, 19, 20, 24, 25)] == [
        None, early, early, None, None, late, late, None,
    ]  # fmt: skip
    assert (feed.next_known(9), feed.next_known(10), feed.next_known(20)) == (10, 20, None)


def test_overlapping_and_empty_chunks_are_not_kept() -> None:
    """A reader that raced another one pulls again; the index stays exact."""
    cache, feed = RecordCache(1 << 20), Feed(1)
    cache.add(chunk(feed, 10, 5))
    for other in (chunk(feed, 12, 1), chunk(feed, 8, 3), chunk(feed, 14, 5), chunk(feed, 3, 0)):
        cache.add(other)
    assert [one.first for one in feed.chunks] == [10]


def test_the_least_recently_used_goes_first_and_the_newest_stays() -> None:
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


def test_a_new_end_wakes_followers_once_and_never_moves_back() -> None:
    """A smaller end is ignored."""

    class Sleeper:
        woken = 0

        def wake(self) -> None:
            self.woken += 1

    feed, sleeper = Feed(1), Sleeper()
    feed.join(sleeper)  # type: ignore[arg-type]
    feed.advance(5)
    feed.advance(5)
    feed.advance(3)
    assert (feed.max_offset, sleeper.woken) == (5, 1)


def pushed(topic: bytes, *dispatch: tuple[int, int]) -> bytes:
    """A record in these queues at these offsets."""
    return make_mqtt_record(topic, b"x" * 50, dispatch=dispatch)


def test_pushed_records_are_split_by_queue() -> None:
    """Into every wanted queue that has it; a run ends where an offset is missing."""
    one, two = Feed(1), Feed(2)
    blob = pushed(b"a", (1, 10), (2, 7)) + pushed(b"b", (2, 8), (9, 0)) + pushed(b"c", (1, 12))
    chunks = split_pushed(memoryview(blob), {1: one, 2: two})
    assert [(chunk.feed, chunk.first, chunk.next, [record[0] for record in chunk.records]) for chunk in chunks] == [
        (one, 10, 11, [b"a"]),
        (two, 7, 9, [b"a", b"b"]),
    ]


def test_a_chunk_does_not_keep_a_large_push_for_little() -> None:
    """It copies a small part, and accounts for the whole of what it keeps."""
    one, two = Feed(1), Feed(2)
    blob = memoryview(pushed(b"a", (1, 0)) + b"".join(pushed(b"b", (2, offset)) for offset in range(40)))
    little, most = split_pushed(blob, {1: one, 2: two})
    assert (len(little.blob), little.records[0][:1], little.records[0][3]) == (len(pushed(b"a", (1, 0))), (b"a",), 0)
    assert most.blob is blob
    assert most.size_bytes > len(blob)


def test_a_queue_whose_readers_are_far_behind_is_not_pushed() -> None:
    """One reader near the end suffices."""
    feed = Feed(1)

    class Reader:
        def __init__(self, lag: int) -> None:
            self.behind = lag

        def lag(self, feed: Feed) -> int:
            return self.behind

    assert not feed.is_near()
    feed.join(Reader(NEAR_RECORDS_MAX + 1))
    assert not feed.is_near()
    feed.join(Reader(NEAR_RECORDS_MAX))
    assert feed.is_near()


class Follower:
    """Counts its wake-ups."""

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def jumped(self, feed: object, offset: int, to: int, reason: str) -> None:
        raise AssertionError

    def queue_deleted(self, feed: object) -> None:
        raise AssertionError


async def test_follow_and_unfollow() -> None:
    """One FOLLOW per turn; its reply has the end of the queue."""
    async with running() as rig:
        notifier, queue_id = rig.tools.notifier, rig.broker.queue(b"q")
        rig.broker.records[queue_id] += [b"", b""]
        first, second = Follower(), Follower()
        feed = notifier.follow(queue_id, first)
        assert notifier.follow(queue_id, second) is feed
        await settle()
        assert rig.broker.codes.count(RequestCode.FOLLOW) == 1
        assert (feed.max_offset, first.woken, second.woken) == (2, 1, 1)
        notifier.unfollow(feed, first)
        notifier.unfollow(feed, second)
        await settle()
        assert list(rig.broker.followed.values()) == [set()]


async def test_left_and_followed_again_in_one_turn() -> None:
    """The broker is asked for the end again."""
    async with running() as rig:
        notifier, queue_id = rig.tools.notifier, rig.broker.queue(b"q")
        feed = notifier.follow(queue_id, Follower())
        await settle()
        rig.broker.records[queue_id].append(b"")
        notifier.unfollow(feed, next(iter(feed.followers)))
        again = notifier.follow(queue_id, Follower())
        await settle()
        assert again.max_offset == 1
        assert list(rig.broker.followed.values()) == [{queue_id}]


async def test_all_queues_are_followed_again_after_a_loss() -> None:
    """And what was appended meanwhile is noticed."""
    async with running() as rig:
        queue_id, follower = rig.broker.queue(b"q"), Follower()
        feed = rig.tools.notifier.follow(queue_id, follower)
        await settle()
        await rig.broker.connections[0].close()
        await settle(5)
        rig.broker.records[queue_id].append(b"")
        while not rig.link.up:
            await settle(1)
        await settle()
        assert (feed.max_offset, follower.woken) == (1, 1)
