"""What was pulled, kept a while: one cache per queue, shared by all its subscribers in this proxy.

A `Feed` is one followed queue: how far the broker has confirmed it, who follows it, and the chunks of records at
hand. A chunk covers the queue offsets [first, next) without a gap, so a cursor finds its record by subtraction.
Chunks of one feed never overlap. All chunks together stay below a byte limit: the longest unused goes first, whoever
still needs it pulls again.
Invariant: `size_bytes` is the sum over all chunks that can be found. Loop rule: everything on the loop's thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from operator import attrgetter
from typing import Protocol

from remoting.protocol.record import dispatch_fields, publish_fields

Record = tuple[bytes, "memoryview | bytes", int, int]
"""(MQTT topic, payload, record flags, start in the chunk's blob); an empty topic is no MQTT message."""

RECORD_OVERHEAD_BYTES = 200
"""What a record's Python objects cost beside its bytes, for the accounting of the limit."""


CHUNK_OVERHEAD_BYTES = 400
"""What a chunk's own objects cost, for the same purpose."""

PUSHED_SHARE_MIN = 16
"""A chunk that needs less than this fraction (1/n) of what was pushed takes a copy instead of keeping all of it."""

NEAR_RECORDS_MAX = 256
"""A reader at most so far behind is served from what the broker pushes; one further behind pulls in large steps."""


class Follower(Protocol):
    """One session as its feeds see it."""

    def wake(self) -> None:
        """Something changed: deliver when the loop is free."""

    def jumped(self, feed: Feed, offset: int, to: int, reason: str) -> None:
        """Nothing can be read at `offset`; reading goes on at `to`."""

    def gone(self, feed: Feed) -> None:
        """The queue does not exist any more."""

    def lag(self, feed: Feed) -> int:
        """How many records of this queue it has not been given."""


class Chunk:
    """Consecutive records of one queue."""

    __slots__ = ("blob", "feed", "first", "next", "records", "size_bytes")

    def __init__(
        self,
        feed: Feed,
        first: int,
        blob: bytes | memoryview,
        records: list[Record] | None = None,
        size_bytes: int = 0,
    ) -> None:
        """`records` are those of the blob that belong here, `size_bytes` what they take of it; default: all."""
        self.feed = feed
        self.first = first
        self.blob = blob
        if records is None:
            records, size_bytes = parse_records(blob), len(blob)
        self.records = records
        self.next = first + len(records)
        self.size_bytes = CHUNK_OVERHEAD_BYTES + size_bytes + RECORD_OVERHEAD_BYTES * len(records)


def parse_records(blob: bytes | memoryview) -> list[Record]:
    """Split raw records, back to back, into what a delivery needs."""
    records: list[Record] = []
    position, end = 0, len(blob)
    while position < end:
        topic, body, flags, _, total = publish_fields(blob, position)
        records.append((topic, body, flags, position))  # type: ignore[arg-type]  # a slice of a view is a view
        position += total
    assert position == end, (position, end)
    return records


def split_pushed(blob: memoryview, wanted: dict[int, Feed]) -> list[Chunk]:
    """Return a chunk for each run of pushed records of the wanted queues.

    A record lies in several queues and says which. A run ends where an offset is missing; what follows is pulled.
    """
    runs: dict[int, tuple[Feed, int, list[Record], list[int]]] = {}
    position, end = 0, len(blob)
    while position < end:
        topic, body, flags, _, total = publish_fields(blob, position)
        record: Record = (topic, body, flags, position)  # type: ignore[assignment]  # a slice of a view is a view
        for queue_id, offset in dispatch_fields(blob, position):
            feed = wanted.get(queue_id)
            if feed is None:
                continue
            run = runs.get(queue_id)
            if run is None:
                runs[queue_id] = (feed, offset, [record], [total])
            elif offset == run[1] + len(run[2]):
                run[2].append(record)
                run[3].append(total)
        position += total
    assert position == end, (position, end)
    return [_pushed_chunk(blob, *run) for run in runs.values()]


def _pushed_chunk(blob: memoryview, feed: Feed, first: int, records: list[Record], sizes: list[int]) -> Chunk:
    """A chunk keeps its whole blob in memory: it counts for all of it, or takes a copy of the little that it needs."""
    if sum(sizes) * PUSHED_SHARE_MIN >= len(blob):
        return Chunk(feed, first, blob, records, len(blob))
    own = b"".join([blob[record[3] : record[3] + size] for record, size in zip(records, sizes, strict=True)])
    return Chunk(feed, first, memoryview(own))


class Feed:
    """One queue followed by at least one session."""

    __slots__ = ("chunks", "followers", "max_offset", "queue_id")

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.max_offset = 0
        """Confirmed end: records below it can be pulled."""
        self.followers: dict[Follower, int] = {}
        """Follower -> how many of its sources read here."""
        self.chunks: list[Chunk] = []

    def advance(self, max_offset: int) -> None:
        """The broker confirmed more; wake whoever follows."""
        if max_offset <= self.max_offset:
            return
        self.max_offset = max_offset
        for follower in self.followers:
            follower.wake()

    def is_near(self) -> bool:
        """Whether somebody is close enough to the end to be given what is pushed."""
        return any(follower.lag(self) <= NEAR_RECORDS_MAX for follower in self.followers)

    def next_known(self, offset: int) -> int | None:
        """The first offset at or after `offset` that a chunk covers: a pull need not go beyond it."""
        index = bisect_right(self.chunks, offset, key=attrgetter("first"))
        return self.chunks[index].first if index < len(self.chunks) else None


class RecordCache:
    """All chunks of all feeds, least recently used first."""

    __slots__ = ("_bytes_max", "_recent", "size_bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._recent: OrderedDict[Chunk, None] = OrderedDict()
        self.size_bytes = 0

    def find(self, feed: Feed, offset: int) -> Chunk | None:
        """The chunk that covers `offset`, if it is still here."""
        index = bisect_right(feed.chunks, offset, key=attrgetter("first")) - 1
        if index < 0:
            return None
        chunk = feed.chunks[index]
        if offset >= chunk.next:
            return None
        self._recent.move_to_end(chunk)
        return chunk

    def add(self, chunk: Chunk) -> None:
        """Keep a chunk; one that would overlap another is used by its reader's retry only if it fits in between."""
        chunks = chunk.feed.chunks
        index = bisect_right(chunks, chunk.first, key=attrgetter("first"))
        after = chunks[index].first if index < len(chunks) else None
        before = chunks[index - 1].next if index else 0
        if not chunk.records or chunk.first < before or (after is not None and chunk.next > after):
            return
        chunks.insert(index, chunk)
        self._recent[chunk] = None
        self.size_bytes += chunk.size_bytes
        # The newest always stays, also when it alone is above the limit: its reader is waiting for it.
        while self.size_bytes > self._bytes_max and len(self._recent) > 1:
            self._drop(next(iter(self._recent)))

    def drop_feed(self, feed: Feed) -> None:
        """Nobody follows the queue any more."""
        for chunk in list(feed.chunks):
            self._drop(chunk)

    def _drop(self, chunk: Chunk) -> None:
        del self._recent[chunk]
        chunk.feed.chunks.remove(chunk)
        self.size_bytes -= chunk.size_bytes
