"""The store as a list: every append in order, and everything visible to a reader in the simplest form.

The model records each append and reads the resulting bytes from the log files with `struct` alone. After a crash it
forgets the appends after the recovered end, whole ones only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

QUEUE, RETAINED = 1, 6
_FILLER = 4

Change = tuple[int, bytes, bytes | None]


@dataclass(slots=True)
class Sent:
    """One message as it was given to the store."""

    queues: tuple[int, ...]
    body: bytes
    count: int = 1
    retained_topic: bytes | None = None
    batch: bool = False

    @property
    def kind(self) -> int:
        """The record type it becomes: message or batch."""
        return 2 if self.batch else 1


@dataclass(slots=True)
class Entry:
    """One record in one queue, with the offsets [offset, offset + count)."""

    offset: int
    count: int
    position: int
    store_ms: int
    data: bytes
    visible_at: int

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.offset + self.count


@dataclass(slots=True)
class Group:
    """What a crash keeps or loses as a whole: an atomic append or one record of another; and its entries."""

    end: int
    visible_at: int
    sent: list[Sent]
    changes: list[Change]
    records: list[tuple[int, bytes]]


@dataclass
class Model:
    """All appends of one data directory and what follows from them."""

    groups: list[Group] = field(default_factory=list)
    queues: dict[int, list[Entry]] = field(default_factory=dict)
    names: dict[bytes, int] = field(default_factory=dict)
    tables: dict[int, dict[bytes, bytes]] = field(default_factory=dict)
    retained: dict[bytes, bytes] = field(default_factory=dict)
    next_id: int = 0

    def append(
        self, directory: Path, bounds: tuple[int, int], sent: list[Sent], changes: list[Change], *, atomic: bool
    ) -> None:
        """Record an append within these bounds of the log."""
        records, end = walk(directory, *bounds), bounds[1]
        kinds = [data[4] for _, data in records]
        assert kinds == [each.kind for each in sent] + [3] * (len(records) - len(sent)), kinds
        if atomic or changes:
            self._apply(Group(end, end, sent, changes, records))
            return
        for each, (position, data) in zip(sent, records, strict=True):
            self._apply(Group(position + len(data), end, [each], [], [(position, data)]))

    def forget_behind(self, end: int) -> None:
        """A crash has left the log up to `end`."""
        groups = [group for group in self.groups if group.end <= end]
        self.__init__()  # type: ignore[misc]
        for group in groups:
            group.visible_at = min(group.visible_at, end)
            self._apply(group)

    def _apply(self, group: Group) -> None:
        self.groups.append(group)
        for sent, (position, data) in zip(group.sent, group.records, strict=False):
            (store_ms,) = struct.unpack_from("<q", data, 32)
            (count,) = struct.unpack_from("<I", data, 52)
            assert count == sent.count, (count, sent.count)
            body_len, body_off = struct.unpack_from("<II", data, 40)
            assert data[body_off : body_off + body_len] == sent.body
            dispatch = [struct.unpack_from("<I4xQ", data, 80 + 16 * at) for at in range(len(sent.queues))]
            assert [queue for queue, _ in dispatch] == list(sent.queues), (dispatch, sent.queues)
            for queue, offset in dispatch:
                entries = self.queues[queue]
                assert offset == (entries[-1].end if entries else 0), (queue, offset, entries[-1:])
                entries.append(Entry(offset, sent.count, position, store_ms, data, group.visible_at))
            if sent.retained_topic is not None:
                self._retain(sent.retained_topic, sent.body)
        for kind, key, value in group.changes:
            if kind == QUEUE:
                self._name(key, value)
            elif value is None:
                self.tables.get(kind, {}).pop(key, None)
            else:
                self.tables.setdefault(kind, {})[key] = value

    def _retain(self, topic: bytes, body: bytes) -> None:
        if body:
            self.retained[topic] = body
        else:
            self.retained.pop(topic, None)

    def _name(self, name: bytes, value: bytes | None) -> None:
        if value is None:
            self.queues.pop(self.names.pop(name))
        else:
            queue = struct.unpack("<I", value)[0]
            assert queue == self.next_id, (queue, self.next_id)
            self.next_id += 1
            self.names[name] = queue
            self.queues[queue] = []

    def confirmed(self, queue: int, confirm: int) -> list[Entry]:
        """The entries of a queue that are visible to readers, expired ones included."""
        return [entry for entry in self.queues[queue] if entry.visible_at <= confirm]


def created(names: list[bytes], first: int) -> list[Change]:
    """The changes that opening new queues makes."""
    return [(QUEUE, name, struct.pack("<I", first + at)) for at, name in enumerate(names)]


def end_of(entries: list[Entry]) -> int:
    """The offset after the last entry."""
    return entries[-1].end if entries else 0


def oldest(entries: list[Entry], begin: int, end: int) -> int:
    """The oldest offset that is still in a log that begins at `begin`; `end` when none is."""
    return next((entry.offset for entry in entries if entry.position >= begin), end)


def first_since(entries: list[Entry], store_ms: int, end: int, *, upper: bool) -> int:
    """The first offset stored at or after (`upper`: after) a time, `end` when none is."""
    for entry in entries:
        if entry.store_ms > store_ms or (entry.store_ms == store_ms and not upper):
            return entry.offset
    return end


def taken(entries: list[Entry], offset: int, stop: int, last: int, max_bytes: int) -> list[Entry]:
    """The records a read gives that wants messages [offset, last) and stops before `stop`.

    The first one whatever it holds, then whole ones as long as they fit into `last` and into the bytes.
    """
    found: list[Entry] = []
    for entry in entries:
        if entry.end <= offset or entry.offset >= min(stop, last):
            continue
        if stop <= offset or max_bytes <= 0 or (found and (len(entry.data) > max_bytes or entry.end > last)):
            break
        found.append(entry)
        max_bytes -= len(entry.data)
    return found


def walk(directory: Path, first: int, end: int) -> list[tuple[int, bytes]]:
    """The (position, bytes) of every record in [first, end) of the log files, fillers left out."""
    bases = sorted(int(path.name) for path in (directory / "log").iterdir() if path.name.isdigit())
    found, at = [], first
    while at < end:
        base = max(base for base in bases if base <= at)
        with (directory / "log" / f"{base:020d}").open("rb") as file:
            file.seek(at - base)
            head = file.read(8)
            total, kind = struct.unpack("<II", head)
            assert kind >> 8 == 0x4C4D51, (at, kind)
            data = head + file.read(total - 8)
        assert struct.unpack_from("<Q", data, 16)[0] == at, at
        if kind & 0xFF != _FILLER:
            found.append((at, data))
        at += total
    assert at == end, (at, end)
    return found
