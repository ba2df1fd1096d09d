"""The interface of both twins of the native core and of its packet loops, and the constants they share.

An *entry block* holds the index entries of one append in log order: per entry queue id, queue offset of its first
message, log position, record size in bytes (0: a hole, its offsets lie in a damaged range of the log), tag hash and
the count of its messages. A *ring* is the index tail's memory: the entries and, per queue, a row of next offset, newest
entry, confirmed end and first offset in the tail. Invariant: `Encoder.encode` assigns the offsets and advances the
rows; a caller that then fails to write the bytes calls `Ring.undo`.

A *plain* record is a message from MQTT whose only properties are its topic and, optionally, the client id: most
deliveries consist of these, and `write_run` takes no others. `starts` are the places of records in a blob, packed as
native-endian u32. Invariant: the twins give the same bytes, numbers and changes. Thread rule: loop thread;
`order_by_queue`, `sort_entries` and `gather` on any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from remoting.native.vectors import Column, view
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN, FLAG_STAGED
from remoting.protocol.records.rocketmq_form import Origin, SentFields
from remoting.protocol.records.stored_message import Host

RETAINED_MASK = FLAG_MQTT | FLAG_RETAIN | FLAG_STAGED
RETAINED_VALUE = FLAG_MQTT | FLAG_RETAIN
"""A message with these flags, under the mask, sets or clears the retained message of its topic."""

Blob = bytes | bytearray | memoryview
Starts = Column
"""Places of records in a blob, u32."""
QueuesOfTopic = tuple[tuple[int, ...], ...]
"""The queues of a topic by number, each as the tuple of queue ids of a message sent to it."""
SLOT_FIELDS = {
    "offset": (0, "q"), "position": (8, "q"),
    "size": (16, "I"), "tag": (20, "I"), "count": (24, "I"), "prev": (28, "I"),
}  # fmt: skip
"""Place and kind of each field of an entry in the ring; `prev` is the distance back to the queue's entry before, 0
when that is not in the ring."""
SLOT_BYTES = 32


def slot_column(slots: memoryview, field: str) -> Column:
    """Return one field of the slots, in their memory."""
    at, kind = SLOT_FIELDS[field]
    return view(slots, kind, len(slots) // SLOT_BYTES, at, SLOT_BYTES)


ROW_WORDS = 4
NEXT, NEWEST, CONFIRMED, FLUSHED = range(ROW_WORDS)
"""Words of a queue's row, i64: next offset, number of the newest entry, confirmed end, offset of its oldest live entry.

The last is valid only while the newest entry is live; otherwise everything below the next offset is in the runs.
"""

COUNT_AT, END_AT = range(2)
"""Indexes of the entry count and the end position among the counters of the tail's file."""
SPAN_S = 300
"""Messages that wait for their time stand in one queue per so many seconds of due time."""
SPAN_MS = SPAN_S * 1_000
KEPT_BYTES_MAX = 1024 * 1024
"""A segment writer keeps the bytes of a batch up to this size, for readers of what was just written."""

Found = tuple[Column, Column, Column, Column, int]
"""Queue offset, position, size and tag hash per entry, and the offset after the last one."""
NextSegment = Callable[[int], int]
"""Creates the segment that starts at a position and returns its end. Raises OSError."""


class EntryBlock(Protocol):
    """Immutable index entries in log order."""

    def __len__(self) -> int: ...

    def slice(self, first: int, end: int) -> EntryBlock:
        """Return entries [first, end)."""
        ...

    def position(self, at: int) -> int:
        """Return the log position of entry `at`."""
        ...

    def positions(self, queue: int, offset: int, count: int, hint: int) -> list[int]:
        """Return the log positions of the messages [offset, offset + count) of a queue, as far as they are here.

        They must stand in this order; the entries from `hint` on are examined first.
        """
        ...

    def columns(self) -> tuple[list[int], list[int], list[int], list[int], list[int], list[int]]:
        """Return queue ids, queue offsets, positions, sizes, tag hashes, counts."""
        ...


class Encoded(Protocol):
    """A batch as bytes, from log position `first_position` to `end_position`."""

    first_position: int
    end_position: int

    @property
    def pieces(self) -> list[tuple[int, bytes]]:
        """Return (log position, bytes) per segment, in order; none when a segment writer has not kept them."""
        ...

    offsets: list[int]
    """Offset of each message in its first queue, -1 when it has none."""
    retained: list[tuple[int, int, int]]
    """(index in `images`, start of the image there, log position) of those that set or clear a retained message."""
    controls: list[int]
    """Log position of each control record."""
    keyed: bool
    """Whether any of the messages may have keys: a keys field, or properties that are not from MQTT."""

    def forget_bytes(self) -> None:
        """Keep everything but the pieces."""
        ...

    @property
    def entries(self) -> EntryBlock:
        """Return the index entries of the batch."""
        ...


class Ring(Protocol):
    """The memory of the index tail. Entries are numbered from 1 on and never renumbered; slot = number % capacity."""

    def store(self, entries: EntryBlock, first: int, count: int) -> None:
        """Append the entries, whose offsets are assigned, after number `count`; `first` is the oldest live one."""
        ...

    def claim(self, entries: EntryBlock, at: int, queue_limit: int) -> int:
        """Advance the rows for entries from `at` on; return the first that is not the next of a queue below the limit.

        Returns the length when all of them are.
        """
        ...

    def undo(self, entries: EntryBlock) -> None:
        """Take back the offsets of these entries, which must be the latest."""
        ...

    def find(self, queue: int, offset: int, wanted: int, first: int, count: int) -> Found:
        """Return the entries of `queue` with messages [offset, offset + wanted); `offset` is live or the next."""
        ...

    def confirm(self, blocks: Sequence[EntryBlock]) -> list[int]:
        """Advance each queue's confirmed end over these blocks; return the distinct ids of the queues that advanced."""
        ...

    def release(self, end: int, count: int) -> None:
        """Drop the entries below number `end`: note the new first offset of queues that still have entries."""
        ...


class RunColumns(Protocol):
    """The directory and columns of a run, see `index.run`."""

    queues: Column
    starts: Column
    first_offsets: Column
    next_offsets: Column
    offsets: Column | None
    positions: Column
    sizes: Column
    tags: Column


@dataclass(slots=True)
class RunData:
    """Content of a run, sorted by (queue id, offset). `offsets` is None when every entry has one message."""

    queues: Column
    first_offsets: Column
    next_offsets: Column
    starts: Column
    positions: Column
    sizes: Column
    tags: Column
    offsets: Column | None


class RunTable(Protocol):
    """The runs of the index, oldest first, as one look-up."""

    def find(self, queue: int, offset: int, limit: int) -> Found:
        """Return the entries of `queue` that hold messages [offset, limit), as far as the runs go."""
        ...

    def first_at(self, queue: int, begin: int) -> int:
        """Return the offset of the queue's first entry at or above log position `begin`, -1 when there is none."""
        ...

    def merge(self) -> RunData:
        """Merge the runs, which must be adjacent in the log with consistent directories. Any thread."""
        ...


class Encoder(Protocol):
    """Makes the records of one epoch."""

    def encode(
        self,
        ring: Ring,
        images: list[bytes],
        queues: list[list[tuple[int, ...]]],
        atomic: bool,
        store_ms: int,
        queue_limit: int,
        position: int,
        segment_end: int,
        next_segment: NextSegment,
    ) -> Encoded:
        """Return the records of the images from `position` on.

        `images[i]` holds images back to back, `queues[i]` the queues of each of them, the parent queue first.
        Raises RecordTooLarge, LocalMisuse, and what `next_segment` raises; the rows are then unchanged.
        """  # fmt: skip
        ...


class KeyChunk(Protocol):
    """Memory of the key index: entries in log order, up to a capacity; those below `count` never change."""

    capacity: int
    count: int

    def columns(self) -> tuple[Column, Column, Column, Column]:
        """Return hashes, positions, sizes and store times in seconds of the entries so far."""
        ...

    def take(self, view: bytes | memoryview, base: int, position: int, end: int) -> int:
        """Add the keys of the sound records in [position, end); return the first record there was no room for."""
        ...


class SegmentWriter(Protocol):
    """Appends whole batches to one range of a log file: encodes, writes, indexes and publishes in one call."""

    attempted: int
    """Bytes that the last write with an OSError may have left in the file."""

    def aim(self, ring: Any, queue_limit: int, counters: memoryview, descriptor: int, base: int, limit: int) -> None:
        """Write into the file that starts at `base`, up to position `limit`; `counters` are those of the index tail."""
        ...

    def write(
        self,
        images: list[bytes],
        queues: list[list[tuple[int, ...]]],
        atomic: bool,
        store_ms: int,
        position: int,
        first: int,
        count: int,
    ) -> Encoded | None:
        """Append the images at `position`, their entries after number `count`; `first` is the oldest live entry.

        Returns None, with nothing changed, when they do not fit the range or the ring. Raises what `Encoder.encode`
        raises, and OSError; the rows are then unchanged.
        """
        ...


class DueSpan(Protocol):
    """The waiting messages of one span of due times: their queues, and how many are due in each of its seconds."""

    queues: tuple[int, ...]

    def count(self, second: int) -> int:
        """Return how many messages are due in this second of the span."""
        ...

    def add(self, second: int, count: int) -> None:
        """Count messages that are due in this second; negative for those that no longer are."""
        ...

    def fullest(self) -> tuple[int, int]:
        """Return (second, messages due in it) of the first second with most."""
        ...


Key = tuple[int, int]
"""(due in ms, offset in the queue) of a message that waits."""
Waiting = tuple[Column, Column, Column]
"""Due times in ms, offsets and log positions of messages that wait."""


class DueHeap(Protocol):
    """Messages that wait, as (due in ms, offset, log position), in order of due and offset."""

    def __len__(self) -> int: ...

    def first(self) -> Key | None:
        """Return the first key, None when there is none."""
        ...

    def add(self, first_offset: int, dues: Column, positions: Column, floor: int, mark: Key, limit: Key) -> None:
        """Add messages of the offsets from `first_offset` on (i64 columns).

        Only those at or above the offset `floor` whose key is above `mark` and below `limit`.
        """
        ...

    def take(self, count: int, floor: int, mark: Key, limit: Key) -> Waiting:
        """Remove up to `count` messages below `limit`, in order, and return their columns.

        Those below the offset `floor`, or not above `mark`, are dropped.
        """
        ...

    def put_back(self, entries: Waiting) -> None:
        """Add messages that `take` returned."""
        ...

    def keep(self, count: int) -> Key:
        """Keep the first `count` messages, of more; return the key of the first that was dropped."""
        ...

    def clear(self) -> None:
        """Remove all messages."""
        ...


@dataclass(frozen=True, slots=True)
class Times:
    """What decides whether a message that names a later time waits, and where (`remoting.protocol.records.delay`)."""

    spans: dict[int, DueSpan]
    """Start of a span in ms -> the span; complete but for those that have no queue yet."""
    opened: Callable[[int], DueSpan]
    """The same for a span that is not in `spans`."""
    limits: Callable[[], tuple[int, int, int, int, int]]
    """Returns (time that delays are added to, time up to which everything is due, longest delay, all in ms; how many
    more may wait; how many in one second, 0 for any number). Called once, at the first message that names a time."""


@dataclass(frozen=True, slots=True)
class Way:
    """The placement of messages, as needed to find the queues of images."""

    queues: Mapping[bytes, tuple[int, ...]]
    """MQTT topic -> queue ids, as far as cached; a dict."""
    missed: Callable[[bytes], tuple[int, ...]]
    """The same for topics not in `queues`; raises Refused."""
    light: Mapping[bytes, tuple[int, ...]]
    """Value of INNER_MULTI_DISPATCH -> ids of the light queues it names, as far as cached; a dict."""
    lit: Callable[[bytes], tuple[int, ...]]
    """The same for values not in `light`; raises Refused."""
    writable: Callable[[bytes], tuple[tuple[tuple[int, ...], ...], int]]
    """RocketMQ topic -> (its queues by number, round-robin count). Raises Refused when it takes no writes."""
    turned: Callable[[bytes, int], None]
    """Called with a topic and the number of messages just distributed round-robin to its queues."""
    too_large: Callable[[int, int], Exception]
    """Makes the error for a body and properties of these sizes, one of which is above its limit."""
    body_bytes_max: int
    properties_bytes_max: int


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a scan: positions, the last record's epoch and time, records seen, and why it stopped ("": the end)."""

    position: int
    groups_end: int
    epoch: int
    store_ms: int
    records: int
    group_open: bool
    reason: str = ""


SpecialMessage = Callable[[int, dict[bytes, bytes], bytes], tuple[bytes, bytes]]
"""(flag, properties, body) of a sent message that requires more than to be stored -> (its image, its unique key)."""


@dataclass(frozen=True, slots=True)
class Core:
    """The functions of one twin, compiled or in Python, with the same results."""

    name: str
    make_block: Callable[
        [Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[int]], EntryBlock
    ]
    """(queue ids, queue offsets, positions, sizes, tag hashes, counts) -> entries."""
    make_ring: Callable[[Column, memoryview, memoryview], Ring]
    """(queue id per slot, bytes of the slots, flat rows of ROW_WORDS words) -> ring."""
    make_encoder: Callable[[int, int, int], Encoder]
    """(epoch, maximum record size in bytes, maximum queues per record) -> encoder."""
    make_segment_writer: Callable[[Any], SegmentWriter]
    """(encoder of the same twin) -> segment writer without a file yet."""
    scan: Callable[[memoryview, int, int, Progress], Progress]
    """(segment, its base, its size in bytes, progress so far) -> progress to its end or to the first bad record."""
    collect: Callable[[memoryview, int, int, int, int, int, int], tuple[int, int, EntryBlock, list[int]]]
    """(segment, base, from, to, index from, state from, maximum entries) -> (where it stopped, records, entries of
    records at or above `index from`, positions of those at or above `state from` that change state). All are positions.
    """
    record_end: Callable[[memoryview, int, int, int, int], int]
    """(segment, base, from, wanted, end) -> where the record ends that reaches `wanted`, or -1 where a size on the way
    cannot be one; nothing else is checked."""
    survey: Callable[[memoryview, int, int, int], tuple[int, tuple[Column, ...], list[int]]]
    """(segment, base, from, to) -> (records, (queue id, queue offset, position, size, tag, count) per dispatch,
    positions of those that change state), without fillers. The records must be sound."""
    follow: Callable[[Column, Column, Column, Column, Column, Column, int], list[tuple[int, int]]]
    """(queue ids, queue offsets, positions, counts, next offset per queue or -1, newest position per queue, damage) ->
    (row, offset expected) of entries that do not follow; a queue whose newest entry is before the position `damage`
    may continue at a higher offset. Updates the numbers per queue."""
    hash_spans: Callable[[bytes | bytearray | memoryview, Column, Column], Column]
    """(bytes, starts, lengths) -> low 32 bits of the hash of each span."""
    topic_keys: Callable[[bytes | bytearray | memoryview, Column, Column], list[bytes]]
    """(bytes, starts, lengths) -> the key (`remoting.protocol.records.names.topic_key`) of each queue name there that
    has one, in order; a start below 0 is no name."""
    first_bad: Callable[[memoryview, int, Sequence[int], Sequence[int]], int]
    """(segment, base, positions, sizes) -> index of the first that is not a sound record of that size, or -1."""
    gather: Callable[[memoryview, Column, Column, memoryview], None]
    """(source, starts, sizes, out): copy spans back to back; multiples of 8 inside `source`."""
    order_by_queue: Callable[[Column], Column]
    """(queue ids) -> the order that sorts them stably."""
    sort_entries: Callable[[Column, memoryview, int, int], RunData]
    """(queue id per slot, bytes of the slots, first number, end number) -> these entries of a ring as a run."""
    make_key_chunk: Callable[[int], KeyChunk]
    """(maximum entries, at least the maximum keys of a record) -> empty memory for keys."""
    make_run_table: Callable[[Sequence[RunColumns]], RunTable]
    """(runs, oldest first) -> the look-up over all of them; made again when they change."""
    placed: Callable[[bytes, Way, Times | None], tuple[list[Any], list[tuple[int, int]], bytes, bytes]]
    """(images, way, times) -> (queues of each, (number, start) of those that need more than storing, name a queue that
    does not exist or a time that they may not wait for, whose queues are None; the images, with those that wait as
    staged ones; i64 due time of each that waits, counted in its span). Without times all times named are ignored.
    Raises RemoteViolation, and what the functions of way and times raise; nothing is counted then."""
    topics: Callable[[bytes], set[bytes]]
    """(images) -> their distinct topics. Raises RemoteViolation."""
    hidden: Callable[[bytes, int], bytes]
    """(checked images, a feature's own 32 bits) -> the same as staged ones; see `remoting.protocol.records.image`."""
    shown: Callable[[Blob, Any], bytes | None]
    """(staged records, start of each as u32) -> the images they were sent as; None when one is not sound."""
    make_span: Callable[[tuple[int, ...]], DueSpan]
    """(queues) -> span without messages."""
    make_due_heap: Callable[[], DueHeap]
    """() -> heap without messages."""
    staged_images: Callable[[Column, list[tuple[int, memoryview]], int], tuple[bytes, int]]
    """(positions, (base, bytes) of the log files they may be in, bytes at most) -> (images that the staged records
    there were sent as, how many), up to the first that is no sound staged message or, but for the first, too much."""
    stored: Callable[
        [list[memoryview], Iterable[int], int, Host, Origin, Collection[bytes] | None], tuple[bytes, int, bool] | None
    ]
    """(records, queue offset of each, queue number, store host, origin, tags to choose by or None for all) ->
    (RocketMQ's stored messages back to back, their number, whether one of them is a request of an MQTT client); None
    when there is a batch among the records. Raises CorruptRecord."""
    count_batch: Callable[[bytes], int]
    """(body of SEND_BATCH_MESSAGE) -> the number of its messages. Raises RemoteViolation."""
    sent: Callable[
        [bytes, bytes | None, int, SentFields, Collection[bytes], SpecialMessage, Callable[[], bytes]],
        tuple[bytes, bytes],
    ]
    """(body, text of the properties, flag, what is common, names, special, unique) -> (record images back to back,
    unique key of the first message). Without a text the body is a batch that `count_batch` has counted. `special` makes
    the images of messages that have a property of one of the names or a hidden one, or too long properties; `unique`
    makes a unique key for a message that has none. Raises LocalMisuse, and what these two raise."""
    message_ids: Callable[[Host, Sequence[int]], str]
    """(store host, log positions) -> message ids, separated by commas."""


Buffer = bytes | memoryview

NOTHING = 0
"""A run ended at the end of the portion or of the records."""
FULL = 1
"""A run ended at a message for which there was no room in the window or the byte limit."""
SPECIAL = 2
"""A run ended at a record that is not plain or needs QoS 2."""

PushedRun = tuple[int, int, bytes, int]
"""(queue id, queue offset of the first, starts, bytes of the records): records of one queue without a gap."""

Written = tuple[bytes, int, int, int, int, int]
"""(PUBLISH packets, records taken, number of them with QoS 1, payload bytes, last packet id, why it ended)."""


@dataclass(frozen=True, slots=True)
class PacketCore:
    """The functions of one twin that turn records into PUBLISH packets."""

    name: str
    starts_of: Callable[[Buffer], bytes]
    """(records back to back) -> starts. Raises CorruptRecord where the sizes do not add up to the blob."""
    split: Callable[[Buffer, Collection[int]], list[PushedRun]]
    """(records back to back, queue ids) -> the first gapless run of each of these queues, in order of appearance."""
    pick: Callable[[Buffer, bytes], bytes]
    """(blob, starts) -> the records there, back to back."""
    write_run: Callable[
        [Buffer, bytes, int, int, int, int, int, int, int, dict[int, object], dict[int, None], Any, int], Written
    ]
    """(blob, starts, index of the first, maximum records, highest QoS, protocol level, free places of the window,
    payload bytes that may be begun, last packet id, window, unacknowledged offsets, source, offset of the first) ->
    written.

    A message with QoS 1 takes the next free packet id, `window[id]` becomes (source, offset), and its offset is added
    to the unacknowledged ones.
    """
