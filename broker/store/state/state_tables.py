"""All durable state as views of the log, kind -> key -> (value, position of its record), and their snapshot.

    state/SNAPSHOT  magic "LMQSTAT2" | position i64 | entries u64 | queues n u64 | name bytes u64
                    | next free queue id u32, 0: unknown | u32 zero | position of the record that set it i64
                    queues: id u32[n] | name_len u32[n] | next_offset i64[n] | position i64[n] | names, in order of ids
                    entries x { u16 kind | u16 zero | u32 key_len | u32 value_len | i64 position | key | value }
                    crc32c u32

A queue is a QUEUE record: key = name, value = { id u32, next offset i64 at the time of writing }. The offset matters
when retention carries the record forward: a queue whose messages have all expired continues where it stopped. The
empty name holds { next free id, 0 }, so that the id of a deleted queue is never used again.

A group of queues may keep less than the log, whose files expire oldest first: its queues then begin at a later
position. It may keep more: files that hold its messages then stay. The caller defines the groups at each start; how
far each has expired is durable (RETENTION: name -> position i64), so a hidden offset stays hidden if the rule changes.

The offsets of consumer groups are kept by group (`OwnedTable`): one group's cost what that group has.

Freezing shares the small dicts or pages of a table with the snapshot; a later change copies the one it touches first.
Invariants: the tables are the result of replaying every change of the log in order; they change at append, so state is
shown to clients only once the confirm position has passed its record. A queue id names one queue, ever. The position
of a group only rises and is at most what was confirmed. A snapshot holds exactly the state below its position, and is
replaced only when the log is durable up to there; one older than the begin of the log is ignored, because deletions it
missed may have expired. Thread rule: loop thread; what `freeze` returns may be used elsewhere; saving a snapshot
blocks and belongs to the index thread.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from broker.store.errors import CorruptIndex, QueueIdsUsedUp
from broker.store.state import state_kinds
from broker.store.state.check_point_table import CheckPointTable
from broker.store.state.name_table import VALUE, Entry, FrozenNames, NameTable, QueueColumns
from broker.store.state.state_kinds import CHECK_POINT, GROUP_OFFSET, QUEUE, RETENTION, StateChange
from remoting.native.checksum import crc32c
from remoting.native.vectors import cumsum, view
from runtime.files import atomic_write, make_directory

SHARDS = 256


class FrozenTable(Protocol):
    """The entries of one kind at one moment."""

    @property
    def count(self) -> int:
        """How many there are."""

    def items(self) -> Iterator[tuple[bytes, Entry]]:
        """Iterate over (key, (value, position))."""


class Table(Protocol):
    """The entries of one kind."""

    count: int

    def get(self, key: bytes, /) -> Entry | None:
        """Return (value, position) or None."""

    def put(self, key: bytes, entry: Entry, /) -> None:
        """Let a key have this value and position, whether it was there or not."""

    def discard(self, key: bytes, /) -> None:
        """Forget a key, if it is there."""

    def items(self) -> Iterator[tuple[bytes, Entry]]:
        """Iterate over (key, (value, position)), in no order; nothing may change meanwhile."""

    def older(self, position: int, /) -> Iterator[tuple[int, list[tuple[bytes, Entry]]]]:
        """Yield (entries examined, those of them set below `position`); the table may change meanwhile."""

    def freeze(self) -> FrozenTable:
        """Return all entries as they are now."""


@dataclass(frozen=True, slots=True)
class FrozenShards:
    """A `SharedTable` at one moment."""

    shards: tuple[dict[bytes, Entry], ...]

    @property
    def count(self) -> int:
        """How many entries there are."""
        return sum(map(len, self.shards))

    def items(self) -> Iterator[tuple[bytes, Entry]]:
        """Iterate over (key, (value, position))."""
        for shard in self.shards:
            yield from shard.items()


class SharedTable:
    """Keys of one kind with (value, position)."""

    __slots__ = ("_shards", "_shared", "count")

    def __init__(self, shards: int = SHARDS) -> None:
        self._shards: list[dict[bytes, Entry]] = [{} for _ in range(shards)]
        self._shared = bytearray(shards)
        self.count = 0

    def get(self, key: bytes) -> Entry | None:
        """Return (value, position) or None."""
        return self._shards[hash(key) % len(self._shards)].get(key)

    def put(self, key: bytes, entry: Entry) -> None:
        """Set a key in its shard, copied first where a snapshot shares it."""
        shard = self._own(hash(key) % len(self._shards))
        before = len(shard)
        shard[key] = entry
        self.count += len(shard) - before

    def discard(self, key: bytes) -> None:
        """Forget a key, if it is there."""
        at = hash(key) % len(self._shards)
        if key in self._shards[at]:
            del self._own(at)[key]
            self.count -= 1

    def items(self) -> Iterator[tuple[bytes, Entry]]:
        """Iterate over (key, (value, position)), in no order; nothing may change meanwhile."""
        for shard in self._shards:
            yield from shard.items()

    def older(self, position: int) -> Iterator[tuple[int, list[tuple[bytes, Entry]]]]:
        """Yield (entries examined, those of them set below `position`); the table may change meanwhile."""
        for at in range(len(self._shards)):
            shard = self._shards[at]
            yield len(shard), [(key, entry) for key, entry in shard.items() if entry[1] < position]

    def freeze(self) -> FrozenShards:
        """Return all entries as they are now."""
        self._shared[:] = b"\1" * len(self._shards)
        return FrozenShards(tuple(self._shards))

    def _own(self, at: int) -> dict[bytes, Entry]:
        if self._shared[at]:
            self._shards[at] = self._shards[at].copy()
            self._shared[at] = 0
        return self._shards[at]


OWNER_ENTRIES_SMALL = 2_048
"""An owner's keys are in one dict up to this many, and in `SHARDS` of them from then on."""


def _owner(key: bytes) -> bytes:
    return key.partition(b"\0")[0]


class OwnedTable:
    """Keys `owner 0x00 rest`, so that the keys of one owner are found without a look at those of the others."""

    __slots__ = ("_owners", "count", "on_owner")

    def __init__(self) -> None:
        self._owners: dict[bytes, SharedTable] = {}
        self.count = 0
        self.on_owner: Callable[[bytes, bool], None] | None = None
        """Called with (owner, whether it has keys now) when its first key comes and after its last has gone."""

    def owners(self) -> list[bytes]:
        """The owners that have keys."""
        return list(self._owners)

    def of(self, owner: bytes) -> Iterator[tuple[bytes, Entry]]:
        """Iterate over (key, (value, position)) of one owner, in no order; nothing may change meanwhile."""
        table = self._owners.get(owner)
        return iter(()) if table is None else table.items()

    def get(self, key: bytes) -> Entry | None:
        """Return (value, position) or None."""
        table = self._owners.get(_owner(key))
        return None if table is None else table.get(key)

    def put(self, key: bytes, entry: Entry) -> None:
        """Let a key have this value and position, whether it was there or not."""
        owner = _owner(key)
        table = self._owners.get(owner)
        if table is None:
            table = self._owners[owner] = SharedTable(1)
            if self.on_owner is not None:
                self.on_owner(owner, True)
        before = table.count
        table.put(key, entry)
        self.count += table.count - before
        if before == OWNER_ENTRIES_SMALL < table.count:
            self._owners[owner] = large = SharedTable()
            for each, value in table.items():
                large.put(each, value)

    def discard(self, key: bytes) -> None:
        """Forget a key, if it is there."""
        owner = _owner(key)
        table = self._owners.get(owner)
        if table is not None:
            before = table.count
            table.discard(key)
            self.count -= before - table.count
            if not table.count:
                del self._owners[owner]
                if self.on_owner is not None:
                    self.on_owner(owner, False)

    def items(self) -> Iterator[tuple[bytes, Entry]]:
        """Iterate over (key, (value, position)), in no order; nothing may change meanwhile."""
        for table in self._owners.values():
            yield from table.items()

    def older(self, position: int) -> Iterator[tuple[int, list[tuple[bytes, Entry]]]]:
        """Yield (entries examined, those of them set below `position`); the table may change meanwhile."""
        for owner in self.owners():
            table = self._owners.get(owner)
            if table is not None:
                yield from table.older(position)

    def freeze(self) -> FrozenShards:
        """Return all entries as they are now."""
        return FrozenShards(tuple(shard for table in self._owners.values() for shard in table.freeze().shards))


LOOK_ENTRIES = 8_192
"""Entries examined before a list of the old ones among them is returned, however few."""
Subscriber = Callable[[bytes, bytes | None, int], None]
Said = tuple[int, bytes, bytes, int]
"""Kind, key, value, position of its record."""


@dataclass(slots=True)
class FrozenTables:
    """The tables at one moment: the queues as columns, the other kinds as their tables have them."""

    queues: FrozenNames
    others: dict[int, FrozenTable]


class StateTables:
    """One table per kind of state; subscribers are called after each change."""

    def __init__(self) -> None:
        self.queues = NameTable()
        self.check_points = CheckPointTable()
        self.group_offsets = OwnedTable()
        self._tables: dict[int, Table] = {CHECK_POINT: self.check_points, GROUP_OFFSET: self.group_offsets}
        self._subscribers: dict[int, list[Subscriber]] = {}

    def get(self, kind: int, key: bytes) -> Entry | None:
        """Return (value, position) or None."""
        if kind == QUEUE:
            return self.queues.get(key)
        table = self._tables.get(kind)
        return None if table is None else table.get(key)

    def items(self, kind: int) -> Iterator[tuple[bytes, Entry]]:
        """Iterate over (key, (value, position)) of a kind; do not append state while iterating."""
        if kind == QUEUE:
            return self.queues.items()
        table = self._tables.get(kind)
        return iter(()) if table is None else table.items()

    def count(self, kind: int) -> int:
        """How many keys a kind has."""
        if kind == QUEUE:
            return len(self.queues)
        table = self._tables.get(kind)
        return 0 if table is None else table.count

    def subscribe(self, kind: int, subscriber: Subscriber) -> None:
        """Call `subscriber(key, value or None, position)` at every change of `kind` from now on."""
        self._subscribers.setdefault(kind, []).append(subscriber)

    def apply(self, change: StateChange, position: int) -> None:
        """Apply one change of the record at `position`."""
        kind, key, value = change.kind, change.key, change.value
        if kind == QUEUE:
            if value is None:
                self.queues.discard(key)
            else:
                self.queues.put(key, value, position)
        else:
            table = self._tables.get(kind)
            if table is None:
                table = self._tables[kind] = SharedTable()
            if value is None:
                table.discard(key)
            else:
                table.put(key, (value, position))
        for subscriber in self._subscribers.get(kind, ()):
            subscriber(key, value, position)

    def load(self, kind: int, key: bytes, entry: Entry) -> None:
        """Put an entry of a snapshot; subscribers are called as for a change."""
        self.apply(StateChange(kind, key, entry[0]), entry[1])

    def older_than(self, position: int) -> Iterator[list[Said]]:
        """Yield (kind, key, value, position) of entries set below `position`, in lists, each after a bounded search.

        The tables may change between two lists: what is set meanwhile is younger. Of queues only the floor comes;
        queues themselves: `queues.older_than`.
        """
        floor = self.queues.get(b"")
        found: list[Said] = [(QUEUE, b"", *floor)] if floor is not None and floor[1] < position else []
        looked = 0
        for kind in list(self._tables):
            for examined, entries in self._tables[kind].older(position):
                found += [(kind, key, value, said) for key, (value, said) in entries]
                looked += examined
                if looked >= LOOK_ENTRIES:
                    yield found
                    found, looked = [], 0
        yield found

    def copy(self) -> dict[int, dict[bytes, Entry]]:
        """Return everything as plain dicts, for comparisons."""
        kinds = (QUEUE, *self._tables)
        return {kind: dict(self.items(kind)) for kind in kinds if self.count(kind)}

    def freeze(self) -> FrozenTables:
        """Return the tables as they are now, untouched by later changes, for a snapshot written in another thread."""
        others = {kind: table.freeze() for kind, table in self._tables.items() if table.count}
        return FrozenTables(self.queues.frozen(), others)


QUEUE_IDS = 2**32 - 3
"""How many queue ids a log has. They are stored in 32 bits and never used again: a broker where ten thousand queues
begin and end in every second gives out all of them in five days, one with a hundred in a second in sixteen months."""


class QueueRegistry:
    """The view of the QUEUE table by name and by id; `on_queue(id, next offset)` is called for each changed one."""

    def __init__(self, tables: StateTables) -> None:
        self._names = tables.queues
        self.find = self._names.find
        self.name = self._names.name
        self.exists = self._names.exists
        self.ids = self._names.ids
        self.parts = self._names.parts
        self.on_queue: Callable[[int, int], None] | None = None
        tables.subscribe(state_kinds.QUEUE, self._changed)

    @property
    def next_id(self) -> int:
        """The id the next new queue gets."""
        return self._names.next_id

    @property
    def count(self) -> int:
        """How many queues there are."""
        return self._names.count

    def creation(self, names: list[bytes]) -> list[StateChange]:
        """Return the changes that create `names`, which do not exist. Raises QueueIdsUsedUp."""
        first = self.next_id
        if first + len(names) > QUEUE_IDS:
            raise QueueIdsUsedUp(
                f"this broker has given out {first:,} of {QUEUE_IDS:,} queue ids, which are never used again: it makes "
                "no new queue for a topic or a filter; existing ones go on; move to an empty data directory"
            )
        return [StateChange(state_kinds.QUEUE, name, queue_value(first + at, 0)) for at, name in enumerate(names)]

    def deletion(self, names: list[bytes]) -> list[StateChange]:
        """Return the changes that delete the queues `names` and keep their ids from coming back."""
        if not names:
            return []
        floor = StateChange(state_kinds.QUEUE, b"", queue_value(self.next_id, 0))
        return [*(StateChange(state_kinds.QUEUE, name, None) for name in names), floor]

    def _changed(self, name: bytes, value: bytes | None, _position: int) -> None:
        if name and value is not None and self.on_queue is not None:
            self.on_queue(*VALUE.unpack(value))


def queue_value(queue: int, next_offset: int) -> bytes:
    """Return the value of a QUEUE record."""
    return VALUE.pack(queue, next_offset)


def carried_value(name: bytes, value: bytes, next_offset: Callable[[int], int]) -> bytes:
    """Return the value with which retention carries queue `name` forward; `value` is the present one."""
    queue, _ = VALUE.unpack(value)
    return queue_value(queue, next_offset(queue)) if name else value


_POSITION = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class GroupRule:
    """What a group keeps; age and size are those of the messages in `queues`, which hold each message of it once."""

    queues: tuple[int, ...]
    age_ms: int | None = None
    """None: as long as the log does. 0: forever, within the log's size limit."""
    size_bytes: int = 0
    """0: no limit."""


class QueueGroups:
    """All groups, by name; `changed` is called when the begin of queues moves."""

    def __init__(self, tables: StateTables, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.rules: dict[bytes, GroupRule] = {}
        self._numbers: dict[bytes, int] = {}
        self._begins = [0]
        self._of_queue = array("I")
        for name, (value, _) in tables.items(RETENTION):
            self._begins[self._number(name)] = _POSITION.unpack(value)[0]

    def _number(self, name: bytes) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._begins)
            self._begins.append(0)
        return number

    def define(self, name: bytes, rule: GroupRule) -> None:
        """Make a group or change its rule; `join` adds its queues."""
        self._number(name)
        self.rules[name] = rule

    def forget(self, name: bytes) -> None:
        """Let a group expire with the log from now on; what it hides stays hidden."""
        self.rules.pop(name, None)

    def join(self, name: bytes, queues: Iterable[int]) -> None:
        """Let queues belong to a group; they leave the one they were in."""
        number = self._number(name)
        for queue in queues:
            missing = queue + 1 - len(self._of_queue)
            if missing > 0:
                self._of_queue.frombytes(bytes(4 * (missing + len(self._of_queue) // 2)))
            self._of_queue[queue] = number
        if self._begins[number]:
            self._changed()

    def names(self) -> list[bytes]:
        """Return the groups that have a rule or have ever expired."""
        return list(self._numbers)

    def begin(self, name: bytes) -> int:
        """Return the log position below which the group shows nothing."""
        return self._begins[self._numbers.get(name, 0)]

    def begin_of(self, queue: int) -> int:
        """Return the log position below which a queue shows nothing because of its group; 0 for no group."""
        return self._begins[self._of_queue[queue]] if queue < len(self._of_queue) else 0

    def move(self, name: bytes, begin: int) -> None:
        """Hide what lies below `begin`; the record of it is durable."""
        number = self._number(name)
        self._begins[number] = max(self._begins[number], begin)
        self._changed()

    def outlived(self, log_begin: int) -> list[StateChange]:
        """Return the deletions of state of groups that have no rule and no longer hide anything, each once."""
        names = [
            name
            for name, number in self._numbers.items()
            if 0 < self._begins[number] <= log_begin and name not in self.rules
        ]
        for name in names:
            self._begins[self._numbers[name]] = 0
        return [StateChange(RETENTION, name, None) for name in names]


def expiry_change(name: bytes, begin: int) -> StateChange:
    """Return the change that records how far a group has expired."""
    return StateChange(RETENTION, name, _POSITION.pack(begin))


SNAPSHOT = "SNAPSHOT"
_MAGIC = b"LMQSTAT2"
_HEAD = struct.Struct("<8sqQQQI4xq")
_ENTRY = struct.Struct("<HHIIq")
_PIECE_BYTES = 256 * 1024
_PIECE_ROWS = 64 * 1024


@dataclass(slots=True)
class Snapshot:
    """The tables as of log position `position`, encoded."""

    position: int
    data: memoryview
    entries: int
    queues: QueueColumns


def save_snapshot(directory: Path, position: int, tables: FrozenTables) -> int:
    """Replace the snapshot durably, piece by piece; return its size. Raises OSError."""
    make_directory(directory, mode=0o700, inner=True)
    atomic_write(directory / SNAPSHOT, _sealed(_pieces(position, tables)), mode=0o600)
    return snapshot_size(directory)


def snapshot_size(directory: Path) -> int:
    """Return the bytes of the snapshot there is, 0 for none."""
    try:
        return (directory / SNAPSHOT).stat().st_size
    except FileNotFoundError:
        return 0


def _pieces(position: int, tables: FrozenTables) -> Iterator[bytes]:
    queues = tables.queues.columns()
    floor_id, floor_position = queues.floor or (0, 0)
    entries = sum(table.count for table in tables.others.values())
    name_bytes = queues.lengths.sum()
    yield _HEAD.pack(_MAGIC, position, entries, len(queues.ids), name_bytes, floor_id, floor_position)
    for column, kind in zip((queues.ids, queues.lengths, queues.next_offsets, queues.positions), _KINDS, strict=True):
        for at in range(0, len(column), _PIECE_ROWS):  # in pieces: what is copied at once holds up the other threads
            yield column[at : at + _PIECE_ROWS].astype(kind).tobytes()
    yield from queues.names()
    yield from _entries(tables)


def _entries(tables: FrozenTables) -> Iterator[bytes]:
    parts: list[bytes] = []
    size = 0
    for kind_number, table in tables.others.items():
        for key, (value, said) in table.items():
            parts += (_ENTRY.pack(kind_number, 0, len(key), len(value), said), key, value)
            size += _ENTRY.size + len(key) + len(value)
            if size > _PIECE_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
    yield b"".join(parts)


_KINDS = ("I", "I", "q", "q")


def _sealed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
        yield piece
    yield struct.pack("<I", checksum)


def load_snapshot(directory: Path) -> Snapshot | None:
    """Return the checked snapshot, None when there is none. Raises CorruptIndex."""
    path = directory / SNAPSHOT
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"")
    except FileNotFoundError:
        return None
    if size < _HEAD.size + 4 or struct.unpack("<I", data[-4:])[0] != crc32c(data[:-4]):
        raise CorruptIndex(path, "its checksum does not match")
    magic, position, entries, count, name_bytes, floor_id, floor_position = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptIndex(path, "it is no state snapshot of this version")
    columns, at = [], _HEAD.size
    for kind in _KINDS:
        columns.append(view(data, kind, count, at))
        at += (8 if kind == "q" else 4) * count
    ids, lengths, next_offsets, positions = columns
    starts = cumsum(lengths) - lengths
    queues = QueueColumns(
        ids, starts, lengths, next_offsets, positions, bytearray(data[at : at + name_bytes]),
        (floor_id, floor_position) if floor_id else None,
    )  # fmt: skip
    return Snapshot(position, data[at + name_bytes : -4], entries, queues)


def restore(snapshot: Snapshot, tables: StateTables) -> None:
    """Put every entry of the snapshot into the empty `tables`; subscribers are called for all but the queues."""
    tables.queues.load(snapshot.queues)
    data, at = snapshot.data, 0
    for _ in range(snapshot.entries):
        kind, _, key_len, value_len, said = _ENTRY.unpack_from(data, at)
        key_at = at + _ENTRY.size
        at = key_at + key_len + value_len
        tables.load(kind, bytes(data[key_at : key_at + key_len]), (bytes(data[key_at + key_len : at]), said))
