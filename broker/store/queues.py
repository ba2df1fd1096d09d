"""Queues by name, and reading them: the part of a store that its readers use.

Invariant: ids of queues are never reused; nothing at or above the confirm position is ever returned, and records that
fail their checks raise an error that names them. Who asks for one record gets it or an `Absence`, so that what cannot
be read yet is never taken for what is gone. Thread rule: loop thread; results are views and copies that do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.store.append.replica_writer import ReplicaWriter
from broker.store.append.writer import Writer
from broker.store.index.absence import Absence, Found
from broker.store.index.queue_index import QueueIndex
from broker.store.index.reader import (
    NO_SUCH_QUEUE,
    RangeResult,
    Reader,
    ReadResult,
    SequenceResult,
    TimeSearch,
)
from broker.store.log.failure import Failure
from broker.store.state.state_kinds import StateChange
from broker.store.state.state_tables import QueueRegistry
from broker.store.upkeep.damage import DamageWatch
from remoting.native.vectors import Column
from remoting.protocol.errors import LocalMisuse


class Queues:
    """Names and ids of the queues of one store; each change is a state record."""

    def __init__(
        self, registry: QueueRegistry, index: QueueIndex, writer: Writer | ReplicaWriter, failure: Failure
    ) -> None:
        self._registry = registry
        self._index = index
        self._writer = writer
        self._failure = failure
        self._listeners: list[Callable[[int, bytes], None]] = []

    def on_delete(self, listener: Callable[[int, bytes], None]) -> None:
        """Call `listener(id, name)` for each queue that `delete` has deleted."""
        self._listeners.append(listener)

    def open(self, name: bytes) -> int:
        """Return the id of the queue `name`, created if it does not exist (one state record)."""
        queue = self._registry.find(name)
        return self.open_all([name])[0] if queue is None else queue

    def open_all(self, names: Sequence[bytes]) -> list[int]:
        """Return the ids of the queues `names`; the missing ones are created by one state record.

        Raises QueueIdsUsedUp, StoreFull, StoreFailed: none is made then.
        """
        find = self._registry.find
        missing = list(dict.fromkeys(name for name in names if find(name) is None))
        if missing:
            if b"" in missing:
                raise LocalMisuse("a queue name is not empty")
            created = self._registry.creation(missing)
            try:
                self._index.grow(self._registry.next_id + len(missing))
            except OSError as error:
                raise self._failure.write_failed(error) from error
            self._writer.append((), created, atomic=True)
        return [self._registry.find(name) or 0 for name in names]

    def find(self, name: bytes) -> int | None:
        """Return the id of the queue `name`, None when it does not exist."""
        return self._registry.find(name)

    def name(self, queue: int) -> bytes:
        """Return the name of a queue. Raises LocalMisuse for an unknown id."""
        name = self._registry.name(queue)
        if name is None:
            raise LocalMisuse(f"queue id {queue} does not exist")
        return name

    def delete(self, queues: Sequence[int], changes: Sequence[StateChange] = ()) -> int:
        """Delete queues permanently, in one group with `changes`, on a full disk too; return the end position."""
        names = [self.name(queue) for queue in queues]
        gone = self._registry.deletion(names)
        end = self._writer.append((), [*changes, *gone], atomic=True, essential=True).end_position
        for listener in self._listeners:
            for queue, name in zip(queues, names, strict=True):
                listener(queue, name)
        return end

    def empty(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return (id, next offset) of the queues with ids in [first, end) of which the log has no message.

        One that is not confirmed yet counts as a message.
        """
        next_offset = self._index.next_offset
        return [(queue, next_offset(queue)) for queue in self._index.empty(self._registry.ids(first, end))]

    def part(self, count: int, first: int) -> int | None:
        """Return where the next part of `count` ids that may have queues begins, from id `first` on; None: nowhere.

        Parts begin at multiples of `count`. Long stretches of ids whose queues are deleted are passed over at no cost.
        """
        return next(self._registry.parts(count, first), None)

    def is_empty(self, queue: int, next_offset: int) -> bool:
        """Whether a queue still exists, has the same next offset, and the log has no message of it."""
        if not self._registry.exists(queue) or self._index.next_offset(queue) != next_offset:
            return False
        return self._index.is_empty(queue)

    def had_messages(self, queue: int) -> bool:
        """Whether a queue, which may be deleted, ever had a message or continues another log's."""
        return self._index.next_offset(queue) > 0

    @property
    def count(self) -> int:
        """How many queues there are."""
        return self._registry.count

    @property
    def ids_end(self) -> int:
        """The id that the next new queue gets: all others are below it."""
        return self._registry.next_id


class Reading:
    """Reads the confirmed records of one store, around damage."""

    def __init__(
        self, registry: QueueRegistry, index: QueueIndex, reader: Reader, times: TimeSearch, damage: DamageWatch
    ) -> None:
        self._registry = registry
        self._index = index
        self._reader = reader
        self._times = times
        self._damage = damage
        self.confirmed_end = index.tail.confirmed_end
        """(existing queue) -> offset after its last confirmed record; the cheapest lookup."""

    def _known(self, queue: int) -> None:
        if not self._registry.exists(queue):
            raise LocalMisuse(f"queue id {queue} does not exist")

    def bounds(self, queue: int) -> tuple[int, int]:
        """Return (oldest offset, confirmed end) of a queue. Raises LocalMisuse for an unknown id."""
        self._known(queue)
        return self._reader.bounds(queue)

    def next_offset(self, queue: int) -> int:
        """Return the offset of the queue's next record; it may lie above the confirmed end."""
        self._known(queue)
        return self._index.next_offset(queue)

    def record(self, queue: int, offset: int) -> Found:
        """Return the record that holds the message at `offset` of `queue`, or why there is none."""
        if not self._registry.exists(queue):
            return Absence.GONE if queue < self._registry.next_id else Absence.NOT_YET
        low, high = self._reader.bounds(queue)
        if offset < low:
            return Absence.GONE
        return self._damage.record(queue, offset) if offset < high else Absence.NOT_YET

    def read(
        self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int | None = None
    ) -> ReadResult:
        """Return confirmed records of `queue` from `offset` on. Raises UnreadableOffsets when the first is damaged."""
        if not self._registry.exists(queue):
            return ReadResult(NO_SUCH_QUEUE, offset, offset, 0, 0)
        return self._damage.read(queue, offset, max_count, max_bytes, end_offset)

    def read_range(self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int) -> RangeResult:
        """Return many confirmed records of `queue` in one piece, checksums unread. Raises UnreadableOffsets."""
        if not self._registry.exists(queue):
            return RangeResult(NO_SUCH_QUEUE, offset, offset, 0, 0)
        return self._damage.read_range(queue, offset, max_count, max_bytes, end_offset)

    def sequences(self, queue: int, offset: int, max_count: int) -> SequenceResult:
        """Return position and producer_seq of confirmed single records of `queue`. Raises UnreadableOffsets."""
        self._known(queue)
        return self._damage.sequences(queue, offset, max_count)

    def staged_images(self, positions: Column, max_bytes: int) -> tuple[bytes, int]:
        """Return the images of the staged records at these confirmed positions, and of how many of the first they are.

        It ends before a record that is no sound staged message, or that would exceed `max_bytes` and is not the first.
        """
        return self._reader.staged_images(positions, max_bytes)

    def read_at(self, position: int) -> Found:
        """Return the record at `position`, or why there is none; damaged is also where no record begins."""
        return self._reader.read_at(position)

    def positions(self, queue: int, offset: int, count: int) -> list[int]:
        """Return the positions of the messages [offset, offset + count) of `queue`; fewer when the index has fewer."""
        return [int(position) for position in self._index.read(queue, offset, count).positions]

    def search_time(self, queue: int, store_ms: int, upper: bool = False) -> int:
        """Return the first offset stored at or after `store_ms` (`upper`: after it)."""
        self._known(queue)
        return self._times.first_offset(queue, *self._reader.bounds(queue), store_ms + 1 if upper else store_ms)
