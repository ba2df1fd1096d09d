"""What both twins of the native core and of its packet loops offer, and the numbers they agree on.

An *entry block* holds the index entries of one append in log order: per entry queue id, queue offset of its first
message, log position, record size in bytes (0: a hole, its offsets lie in a damaged stretch of the log), tag hash and
the count of its messages. A *ring* is the index tail's memory: the entries and, per queue, a row of next offset, newest
entry, confirmed end and first offset in the tail. Invariant: `Encoder.encode` gives out the offsets by moving the rows
on at once; a caller that cannot write the bytes calls `Ring.undo`.

A *plain* record is a message from MQTT with nothing but its topic and perhaps the client id for properties: what most
deliveries are made of, and all that `write_run` takes. `starts` are the places of records in a blob, packed u32 of
this machine. Invariant: the twins give the same bytes, numbers and changes. Thread rule: loop thread, `order_by_queue`,
`sort_entries` and `gather` anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN, FLAG_STAGED

RETAINED_MASK = FLAG_MQTT | FLAG_RETAIN | FLAG_STAGED
RETAINED_VALUE = FLAG_MQTT | FLAG_RETAIN
"""A message whose flags under the mask are this sets or clears the retained message of its topic."""

Column = npt.NDArray[Any]
Blob = bytes | bytearray | memoryview
Starts = npt.NDArray[np.uint32]
QueuesOfTopic = tuple[tuple[int, ...], ...]
"""The queues of a topic by number, each as a message to it has them."""
SLOT = np.dtype([
    ("offset", "<i8"), ("position", "<i8"), ("size", "<u4"), ("tag", "<u4"), ("count", "<u4"), ("prev", "<u4"),
])  # fmt: skip
"""One entry in the ring; `prev` is the distance back to the queue's entry before, 0 when it is not in the ring."""
ROW_WORDS = 4
NEXT, NEWEST, CONFIRMED, FLUSHED = range(ROW_WORDS)
"""Words of a queue's row, i64: next offset, number of the newest entry, confirmed end, offset of its oldest live entry.

The last counts only while the newest entry is live; otherwise everything below the next offset is in the runs.
"""

COUNT_AT, END_AT = range(2)
"""Where among the counters of the tail's file the entry count and the end position stand."""
KEPT_BYTES_MAX = 1024 * 1024
"""A batch written by a segment writer keeps its bytes up to this size, for readers of what was just written."""

Found = tuple[Column, Column, Column, Column, int]
"""Queue offset, position, size and tag hash per entry, and the offset behind the last one."""
NextSegment = Callable[[int], int]
"""Makes the segment that starts at a position and returns where it ends. Raises OSError."""


class EntryBlock(Protocol):
    """Index entries in log order; never changed once made."""

    def __len__(self) -> int: ...

    def slice(self, first: int, end: int) -> EntryBlock:
        """Return entries [first, end)."""
        ...

    def position(self, at: int) -> int:
        """Return the log position of entry `at`."""
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
        """(log position, bytes) per segment, one behind the other; none where a segment writer has not kept them."""
        ...

    offsets: list[int]
    """Per message its offset in its first queue, -1 when it has none."""
    retained: list[tuple[int, int, int]]
    """(index in `images`, where the image begins there, log position) of those that set or clear a retained message."""
    controls: list[int]
    """Log position of each control record."""
    keyed: bool
    """Whether any of the messages may have keys: a keys field, or properties that are not from MQTT."""

    def forget_bytes(self) -> None:
        """Keep everything but the pieces."""
        ...

    @property
    def entries(self) -> EntryBlock:
        """The index entries."""
        ...


class Ring(Protocol):
    """The memory of the index tail; numbers count entries for ever, from 1 on, slot = number % capacity."""

    def store(self, entries: EntryBlock, first: int, count: int) -> None:
        """Put entries behind number `count`, when `first` is the oldest live one; their offsets are given out."""
        ...

    def claim(self, entries: EntryBlock, at: int, queue_limit: int) -> int:
        """Move the rows on for entries from `at`; return the first one that is not the next of a queue below the limit.

        The length when all of them are.
        """
        ...

    def undo(self, entries: EntryBlock) -> None:
        """Take back the offsets these entries were given, the latest."""
        ...

    def find(self, queue: int, offset: int, wanted: int, first: int, count: int) -> Found:
        """Return the entries of `queue` that hold messages [offset, offset + wanted); `offset` is live or the next."""
        ...

    def confirm(self, blocks: Sequence[EntryBlock]) -> list[int]:
        """Move each queue's confirmed end over these blocks; return the ids of the queues that moved, once each."""
        ...

    def release(self, end: int, count: int) -> None:
        """Note which offset is now the first one of the queues that go on, when entries below number `end` go."""
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
    """What a run will hold, sorted by (queue id, offset); `offsets` None: every entry holds one message."""

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
        """Return all of them, neighbours in the log whose directories add up, as one; in any thread."""
        ...


class Encoder(Protocol):
    """Makes records of one start of the store (its epoch)."""

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
        Raises RecordTooLarge, LocalMisuse, and what `next_segment` raises; the rows are as before then.
        """  # fmt: skip
        ...


class KeyChunk(Protocol):
    """Memory of the key index: entries in log order, up to a capacity; what is below `count` never changes."""

    capacity: int
    count: int

    def columns(self) -> tuple[Column, Column, Column, Column]:
        """Return hashes, positions, sizes and store times in seconds of the entries so far."""
        ...

    def take(self, view: bytes | memoryview, base: int, position: int, end: int) -> int:
        """Take in the keys of the sound records in [position, end); return the first record there was no room for."""
        ...


class SegmentWriter(Protocol):
    """Puts whole batches into one stretch of one log file: encodes, writes, indexes and publishes in one call."""

    attempted: int
    """Bytes that the last write which raised OSError may have left in the file."""

    def aim(self, ring: Any, queue_limit: int, counters: memoryview, descriptor: int, base: int, limit: int) -> None:
        """Write into the file that starts at `base`, up to position `limit`; `counters` are the tail's."""
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
        """Append the images at `position`, their entries behind number `count`, when `first` is the oldest live one.

        None when they do not fit the stretch or the ring: nothing has happened then. Raises what `Encoder.encode`
        raises, and OSError; the rows are as before then.
        """
        ...


@dataclass(frozen=True, slots=True)
class Way:
    """Where messages go: what the placement knows, as the walk over images asks it."""

    queues: Mapping[bytes, tuple[int, ...]]
    """MQTT topic -> queue ids, those at hand; a dict."""
    missed: Callable[[bytes], tuple[int, ...]]
    """The same for topics not in there; raises Refused."""
    writable: Callable[[bytes], tuple[tuple[tuple[int, ...], ...], int]]
    """RocketMQ topic -> (its queues by number, how many messages took turns); Refused when it takes no writes."""
    turned: Callable[[bytes, int], None]
    """Told how many more messages took turns in a topic's queues."""
    too_large: Callable[[int, int], Exception]
    """What is raised for a body and properties of such sizes, one of which is above its limit."""
    body_bytes_max: int
    properties_bytes_max: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a scan came: positions, the last record's epoch and time, records seen, and why it stopped ("" : end)."""

    position: int
    groups_end: int
    epoch: int
    store_ms: int
    records: int
    group_open: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Core:
    """What one twin offers, compiled or in Python: the same calls with the same results."""

    name: str
    make_block: Callable[
        [Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[int]], EntryBlock
    ]
    """(queue ids, queue offsets, positions, sizes, tag hashes, counts) -> entries."""
    make_ring: Callable[[Column, Column, memoryview], Ring]
    """(queue id per slot, SLOT per slot, flat rows of ROW_WORDS words) -> ring."""
    make_encoder: Callable[[int, int, int], Encoder]
    """(epoch, largest record in bytes, most queues per record) -> encoder."""
    make_segment_writer: Callable[[Any], SegmentWriter]
    """(encoder of the same twin) -> segment writer without a file yet."""
    scan: Callable[[memoryview, int, int, Progress], Progress]
    """(segment, its base, its size in bytes, progress so far) -> progress to its end or to the first bad record."""
    collect: Callable[[memoryview, int, int, int, int, int, int], tuple[int, int, EntryBlock, list[int]]]
    """(segment, base, from, to, index from, state from, most entries) -> (where it stopped, records, entries of
    records at or above `index from`, positions of those at or above `state from` that change state). Positions all."""
    survey: Callable[[memoryview, int, int, int], tuple[int, tuple[Column, ...], list[int]]]
    """(segment, base, from, to) -> (records, per dispatch its (queue id, queue offset, position, size, tag, count),
    positions of those that change state); fillers are none. The records are sound."""
    follow: Callable[[Column, Column, Column, Column, Column, Column, int], list[tuple[int, int]]]
    """(queue ids, queue offsets, positions, counts, next offset per queue or -1, newest position per queue, damage) ->
    (row, offset expected) of entries that do not follow; a queue whose newest entry stands before the position `damage`
    may go on at a higher offset. The numbers per queue move on."""
    hash_spans: Callable[[bytes | bytearray | memoryview, Column, Column], Column]
    """(bytes, starts, lengths) -> low 32 bits of the hash of each span."""
    first_bad: Callable[[memoryview, int, Sequence[int], Sequence[int]], int]
    """(segment, base, positions, sizes) -> index of the first that is no such record by its checks, or -1."""
    gather: Callable[[memoryview, Column, Column, memoryview], None]
    """(source, starts, sizes, out): copy spans back to back; multiples of 8 inside `source`."""
    order_by_queue: Callable[[Column], Column]
    """(queue ids) -> the order that sorts them and keeps equal ones as they stand."""
    sort_entries: Callable[[Column, Column, int, int], RunData]
    """(queue id per slot, SLOT per slot, first number, end number) -> these entries of a ring as a run."""
    make_key_chunk: Callable[[int], KeyChunk]
    """(most entries, at least as many as one record has keys) -> empty memory for keys."""
    make_run_table: Callable[[Sequence[RunColumns]], RunTable]
    """(runs, oldest first) -> the look-up over all of them; made anew when they change."""
    placed: Callable[[bytes, Way], tuple[list[Any], list[tuple[int, int]]]]
    """(images, way) -> (queues of each, (number, where it begins) of those that ask for more than to be stored, or for
    a queue that does not exist; theirs are None). Raises RemoteViolation, and what the way's functions raise."""
    topics: Callable[[bytes], set[bytes]]
    """(images) -> the topics they are for. Raises RemoteViolation."""
    hidden: Callable[[bytes], bytes]
    """(images that were checked) -> the same as staged ones."""
    shown: Callable[[Blob, Any], bytes | None]
    """(staged records, where each begins as u32) -> the images they were sent as; None when one is not sound."""


Buffer = bytes | memoryview

NOTHING = 0
"""A run ended because the portion or the records did."""
FULL = 1
"""A run ended at a message there was no room for: window or bytes."""
SPECIAL = 2
"""A run ended at a record that is not plain, or is to be sent with QoS 2."""

PushedRun = tuple[int, int, bytes, int]
"""(queue id, queue offset of the first, starts, bytes of the records): records of one queue without a gap."""

Written = tuple[bytes, int, int, int, int, int]
"""(PUBLISH packets, records taken, how many of them with QoS 1, payload bytes, last packet id, why it ended)."""


@dataclass(frozen=True, slots=True)
class PacketCore:
    """Records to PUBLISH packets, by one twin."""

    name: str
    starts_of: Callable[[Buffer], bytes]
    """(records back to back) -> starts. Raises CorruptRecord where the sizes do not add up to the blob."""
    split: Callable[[Buffer, Collection[int]], list[PushedRun]]
    """(records back to back, queue ids) -> the first gapless run of each of these queues, in order of appearance."""
    pick: Callable[[Buffer, bytes], bytes]
    """(blob, starts) -> these records back to back."""
    write_run: Callable[
        [Buffer, bytes, int, int, int, int, int, int, int, dict[int, object], dict[int, None], Any, int], Written
    ]
    """(blob, starts, index of the first, most records, highest QoS, protocol level, free places of the window, payload
    bytes that may be begun, last packet id, window, unacknowledged offsets, source, offset of the first) -> written.

    A message with QoS 1 takes the next free packet id, `window[id]` becomes (source, offset), and its offset joins the
    unacknowledged ones."""
