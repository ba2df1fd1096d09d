"""The queues this proxy follows, and the records pulled or pushed from them, cached for all their subscribers.

A `Feed` is one followed queue: how far the broker has confirmed it, its followers, and the chunks of records at
hand. A chunk covers the queue offsets [first, next) without a gap, so a cursor finds its record by subtraction.
Chunks of one feed never overlap. All chunks together stay below a byte limit: the least recently used are dropped
first, and pulled again where they are still needed.

FOLLOW reports to the broker, once per loop turn, the queues added and removed (`Notifier`); its reply contains the
confirmed end of each added queue, so that nothing stored between a subscription and its FOLLOW is missed. NOTIFY comes
from the broker, once per turn, with the new ends of followed queues and, where they are small, the records themselves:
they go into the cache when a follower is about to read them. After a reconnection everything is followed again.
Invariant: `size_bytes` is the sum over all chunks that can be found; the broker follows `feeds` on our behalf, minus
what is still to be sent. Loop rule: everything on the loop's thread.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from operator import attrgetter
from typing import Protocol

from mqtt_proxy.link import Link
from remoting.native import packets
from remoting.protocol.bodies.follow_body import decode_follow_reply, decode_notify, encode_follow
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import publish_fields, stored_ms
from remoting.transport.turn import soon
from runtime.clock import Clock, SystemClock
from runtime.logs import get_logger

Record = tuple[bytes, "memoryview | bytes", int, int]
"""(MQTT topic, payload, record flags, start in the chunk's blob); an empty topic is no MQTT message."""

RECORD_OVERHEAD_BYTES = 200
"""Memory of a record's Python objects beside its bytes, for the accounting of the limit."""


CHUNK_OVERHEAD_BYTES = 400
"""Memory of a chunk's own objects, for the same purpose."""

PUSHED_SHARE_MIN = 16
"""A chunk that needs less than this fraction (1/n) of the pushed blob copies its part instead of keeping all of it."""

START_BYTES = 4
"""Size of one entry of `Chunk.starts`."""

NEAR_RECORDS_MAX = 4_096
"""A reader at most so far behind is served from pushed records; one further behind pulls in large steps."""


class QueueFollower(Protocol):
    """One session as its feeds call it."""

    def wake(self) -> None:
        """New records, or another change: deliver when the loop is free."""

    def jumped(self, feed: Feed, offset: int, to: int, reason: str) -> None:
        """Nothing can be read at `offset`; reading continues at `to`."""

    def queue_deleted(self, feed: Feed) -> None:
        """The queue does not exist any more."""

    def lag(self, feed: Feed) -> int:
        """How many records of this queue it has yet to be given."""


class Chunk:
    """Consecutive records of one queue."""

    __slots__ = ("_records", "blob", "feed", "first", "next", "shared", "size_bytes", "starts")

    def __init__(
        self, feed: Feed, first: int, blob: bytes | memoryview, starts: bytes | None = None, size_bytes: int = -1
    ) -> None:
        """`starts` are the places of its records in the blob, `size_bytes` what counts of it; default: all."""
        self.feed = feed
        self.first = first
        self.blob = blob
        self.starts = packets.core.starts_of(blob) if starts is None else starts
        count = len(self.starts) // START_BYTES
        self.next = first + count
        size_bytes = len(blob) if size_bytes < 0 else size_bytes
        self.size_bytes = CHUNK_OVERHEAD_BYTES + size_bytes + RECORD_OVERHEAD_BYTES * count
        self.shared: object = None
        """Packets built from it that another session can send unchanged."""
        self._records: list[Record] | None = None

    @property
    def records(self) -> list[Record]:
        """The fields of each record for delivery, for those that are not sent as runs."""
        if self._records is None:
            blob = self.blob
            self._records = [_record(blob, start) for start in memoryview(self.starts).cast("I")]
        return self._records


def _record(blob: bytes | memoryview, start: int) -> Record:
    topic, body, flags, _, _ = publish_fields(blob, start)
    return topic, body, flags, start  # type: ignore[return-value]  # a slice of a view is a view


def parse_records(blob: bytes | memoryview) -> list[Record]:
    """Split raw records, back to back, into the fields for delivery."""
    return [_record(blob, start) for start in memoryview(packets.core.starts_of(blob)).cast("I")]


def split_pushed(blob: memoryview, wanted: dict[int, Feed]) -> list[Chunk]:
    """Return a chunk for each run of pushed records of the wanted queues.

    A record lies in several queues and names them. A run ends where an offset is missing; the rest is pulled. A chunk
    keeps its whole blob in memory: it counts for all of it, or copies the small part that it needs.
    """
    chunks = []
    for queue_id, first, starts, size_bytes in packets.core.split(blob, wanted):
        feed = wanted[queue_id]
        if size_bytes * PUSHED_SHARE_MIN >= len(blob):
            chunks.append(Chunk(feed, first, blob, starts, len(blob)))
        else:
            chunks.append(Chunk(feed, first, memoryview(packets.core.pick(blob, starts))))
    return chunks


class Feed:
    """One queue followed by at least one session."""

    __slots__ = ("_followers", "chunks", "max_offset", "only", "queue_id")

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.max_offset = 0
        """Confirmed end: records below it can be pulled."""
        self.only: QueueFollower | None = None
        """The follower, while it is the only one and has one source: most queues have one reader."""
        self._followers: dict[QueueFollower, int] | None = None
        """Follower -> how many of its sources read here, once there were several."""
        self.chunks: list[Chunk] | None = None
        """By offset, once there was one."""

    @property
    def is_followed(self) -> bool:
        """Whether the queue has a follower."""
        return self.only is not None or bool(self._followers)

    @property
    def followers(self) -> tuple[QueueFollower, ...]:
        """The followers, each once."""
        if self.only is not None:
            return (self.only,)
        return tuple(self._followers or ())

    def join(self, follower: QueueFollower) -> None:
        """The follower has one more source here."""
        if self._followers is None:
            if self.only is None:
                self.only = follower
                return
            self._followers = {self.only: 1}
            self.only = None
        self._followers[follower] = self._followers.get(follower, 0) + 1

    def leave(self, follower: QueueFollower) -> None:
        """The follower has one source less here."""
        if self._followers is None:
            assert self.only is follower
            self.only = None
            return
        count = self._followers[follower] - 1
        if count:
            self._followers[follower] = count
        else:
            del self._followers[follower]

    def advance(self, max_offset: int) -> None:
        """The broker confirmed more; wake the followers."""
        if max_offset <= self.max_offset:
            return
        self.max_offset = max_offset
        if self.only is not None:
            self.only.wake()
        elif self._followers is not None:
            for follower in self._followers:
                follower.wake()

    def is_near(self) -> bool:
        """Whether a follower is close enough to the end to be served from pushed records."""
        if self.only is not None:
            return self.only.lag(self) <= NEAR_RECORDS_MAX
        for follower in self._followers or ():  # noqa: SIM110 - a generator costs more than the look
            if follower.lag(self) <= NEAR_RECORDS_MAX:
                return True
        return False

    def next_known(self, offset: int) -> int | None:
        """The first offset at or after `offset` that a chunk covers: a pull needs nothing beyond it."""
        chunks = self.chunks
        if not chunks:
            return None
        index = _behind(chunks, offset)
        return chunks[index].first if index < len(chunks) else None


def _behind(chunks: list[Chunk], offset: int) -> int:
    """Where the chunks begin that lie above `offset`; most often there are none."""
    if not chunks:
        return 0
    last = chunks[-1]
    if last.first <= offset:
        return len(chunks)
    return bisect_right(chunks, offset, key=attrgetter("first"))


class RecordCache:
    """All chunks of all feeds, least recently used first."""

    __slots__ = ("_bytes_max", "_recent", "size_bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._recent: OrderedDict[Chunk, None] = OrderedDict()
        self.size_bytes = 0

    def find(self, feed: Feed, offset: int) -> Chunk | None:
        """The chunk that covers `offset`, if it is still here."""
        chunks = feed.chunks
        index = _behind(chunks, offset) - 1 if chunks else -1
        if not chunks or index < 0:
            return None
        chunk = chunks[index]
        if offset >= chunk.next:
            return None
        self._recent.move_to_end(chunk)
        return chunk

    def add(self, chunk: Chunk) -> None:
        """Add a chunk; one that would overlap another is added on its reader's retry only if it fits in between."""
        chunks = chunk.feed.chunks
        if chunks is None:
            chunks = chunk.feed.chunks = []
        index = _behind(chunks, chunk.first)
        if chunk.next == chunk.first:
            return
        if index:
            near = chunks[index - 1]
            if chunk.first < near.next:
                return
        if index < len(chunks):
            near = chunks[index]
            if chunk.next > near.first:
                return
        chunks.insert(index, chunk)
        self._recent[chunk] = None
        self.size_bytes += chunk.size_bytes
        # The newest always stays, even when it alone exceeds the limit: its reader is waiting for it.
        while self.size_bytes > self._bytes_max and len(self._recent) > 1:
            self.drop(next(iter(self._recent)))

    def drop_feed(self, feed: Feed) -> None:
        """The queue has no follower any more."""
        for chunk in list(feed.chunks or ()):
            self.drop(chunk)

    def drop(self, chunk: Chunk) -> None:
        """No session needs a chunk kept here any more."""
        del self._recent[chunk]
        assert chunk.feed.chunks is not None, "it holds this chunk"
        chunk.feed.chunks.remove(chunk)
        self.size_bytes -= chunk.size_bytes


class Notifier:
    """Follows queues on behalf of sessions."""

    def __init__(
        self,
        link: Link,
        cache: RecordCache,
        took: Callable[[float], object] = float,
        clock: Clock | None = None,
    ) -> None:
        """`took`: called with the seconds between storing the first record of a notification and its receipt."""
        self._took = took
        self._now_ms = (clock or SystemClock()).now_ms
        self.feeds: dict[int, Feed] = {}
        self._link = link
        self._cache = cache
        self._added: dict[int, None] = {}
        self._removed: dict[int, None] = {}
        self._scheduled = False
        self._log = get_logger("proxy.notify")
        link.on_push(RequestCode.NOTIFY, self._notified)
        link.on_up(self._follow_again)

    def follow(self, queue_id: int, follower: QueueFollower) -> Feed:
        """Notify the follower of a queue's new records until `unfollow`, which must be called as often."""
        feed = self.feeds.get(queue_id)
        if feed is None:
            feed = self.feeds[queue_id] = Feed(queue_id)
            # Also when the broker still follows it on our behalf: only a FOLLOW returns where it ends now.
            self._removed.pop(queue_id, None)
            self._added[queue_id] = None
            self._schedule()
        feed.join(follower)
        return feed

    def unfollow(self, feed: Feed, follower: QueueFollower) -> None:
        """The follower has one source less in this queue."""
        feed.leave(follower)
        if feed.is_followed:
            return
        del self.feeds[feed.queue_id]
        self._cache.drop_feed(feed)
        self._added.pop(feed.queue_id, None)
        self._removed[feed.queue_id] = None
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            soon(self._send)

    def _follow_again(self) -> None:
        self._removed.clear()
        self._added = dict.fromkeys(self.feeds)
        self._schedule()

    def _send(self) -> None:
        self._scheduled = False
        if not self._link.up or not (self._added or self._removed):
            return
        added, removed = list(self._added), list(self._removed)
        self._added.clear()
        self._removed.clear()
        task = self._link.post(RequestCode.FOLLOW, encode_follow(added, removed), fields={"records": "all"})
        task.add_done_callback(lambda done: self._followed(added, done))

    def _followed(self, added: list[int], task: asyncio.Future[bytes]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:  # lost: followed again on reconnection; refused: our own bug, logged as an error
            self._log.warning("follow_failed", queues=len(added), error=str(error))
            return
        for queue_id, max_offset in zip(added, decode_follow_reply(task.result()), strict=True):
            feed = self.feeds.get(queue_id)
            if feed is not None:
                feed.advance(max_offset)

    def _notified(self, command: Command) -> None:
        ends, records = decode_notify(command.body)
        feeds = self.feeds
        moved = []
        wanted = {}
        is_pushed = len(records) > 0
        if is_pushed:
            self._took(max(0, self._now_ms() - stored_ms(records)) / 1_000)  # two machines' clocks may differ
        for queue_id, end in ends:
            feed = feeds.get(queue_id)
            if feed is not None:
                moved.append((feed, end))
                if is_pushed and feed.is_near():
                    wanted[queue_id] = feed
        if wanted:  # into the cache, and they need not be pulled
            for chunk in split_pushed(records, wanted):
                self._cache.add(chunk)
        for feed, end in moved:
            feed.advance(end)
