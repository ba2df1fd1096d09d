"""A model of a disk that loses data: from the calls of a process, what may be on it after a power cut.

It promises what POSIX promises and no more. fsync and fdatasync keep what was written to that file before the call
began, in sectors of 512 bytes; fsync of a directory keeps its names. Everything else is chosen: each sector holds any
of the contents written to it since, a file has any of the sizes it had, and each change of a name happened or not.
A rename is one change: it happened or not, and never leaves both names or none. A file mapped for writing may have
anything of its last content.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
OPEN, CLOSE, WRITE, SYNC_BEGIN, SYNC_END, RENAME, UNLINK, MKDIR, LINK, TRUNCATE, ALLOCATE, MAP = range(1, 13)
_HEAD = struct.Struct("<IiqqII")
KEEP, LOSE, MIXED = "keep", "lose", "mixed"


@dataclass(slots=True)
class Call:
    """One record of `recorder.c`."""

    kind: int
    descriptor: int
    at: int
    size: int
    first: bytes
    second: bytes


@dataclass(slots=True, eq=False)
class File:
    """Content that is on the disk, and the changes to it since."""

    kept: bytearray = field(default_factory=bytearray)
    size: int = 0
    """As the process sees it."""
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    begun: list[tuple[int, int]] = field(default_factory=list)
    """Flushes under way: how many writes and sizes each covers."""
    is_mapped: bool = False

    def write(self, at: int, data: bytes) -> None:
        """Apply a write."""
        self.writes.append((at, data))
        self.resize(max(self.size, at + len(data)))

    def resize(self, size: int) -> None:
        """Apply a change of the size; what is cut off returns as zeros at most."""
        if size < self.size:
            self.writes.append((size, bytes(self.size - size)))
        if size != self.size:
            self.sizes.append(size)
        self.size = size

    def begin(self) -> None:
        """Begin a flush."""
        self.begun.append((len(self.writes), len(self.sizes)))

    def keep(self) -> None:
        """The oldest flush in progress has returned."""
        writes, sizes = self.begun.pop(0)
        for at, data in self.writes[:writes]:
            _put(self.kept, at, data)
        if sizes:
            _fit(self.kept, self.sizes[sizes - 1])
        del self.writes[:writes], self.sizes[:sizes]
        self.begun = [(max(0, a - writes), max(0, b - sizes)) for a, b in self.begun]

    def after(self, chance: random.Random, mood: str) -> bytearray:
        """What a power cut leaves."""
        found = bytearray(self.kept)
        size = len(self.kept)
        if self.sizes and mood != LOSE:
            size = ([size, *self.sizes])[-1 if mood == KEEP else chance.randrange(len(self.sizes) + 1)]
        lost = chance.choice((0.05, 0.5, 0.95))
        stuck: set[int] = set()
        for at, data in self.writes if mood != LOSE else ():
            for first, part in _sectors(at, data):
                if mood == MIXED and first // SECTOR not in stuck and chance.random() < lost:
                    stuck.add(first // SECTOR)  # it reached the disk before this write and not again
                if first // SECTOR not in stuck:
                    _put(found, first, part)
        return _fit(found, size)


@dataclass(slots=True, eq=False)
class Directory:
    """Names that are on the disk, and their changes since."""

    kept: dict[str, Node] = field(default_factory=dict)
    names: dict[str, Node] = field(default_factory=dict)
    """As the process sees them."""
    changes: list[tuple[str, str, Node | None]] = field(default_factory=list)
    """(name that goes or "", name that comes or "", what it names)."""
    begun: list[int] = field(default_factory=list)

    def change(self, gone: str, come: str, node: Node | None) -> None:
        """Apply one change."""
        self.changes.append((gone, come, node))
        _rename(self.names, gone, come, node)

    def begin(self) -> None:
        """Begin a flush."""
        self.begun.append(len(self.changes))

    def keep(self) -> None:
        """The oldest flush in progress has returned."""
        count = self.begun.pop(0)
        for change in self.changes[:count]:
            _rename(self.kept, *change)
        del self.changes[:count]
        self.begun = [max(0, each - count) for each in self.begun]

    def after(self, chance: random.Random, mood: str) -> dict[str, Node]:
        """The names a power cut leaves."""
        found = dict(self.kept)
        lost = chance.choice((0.1, 0.5, 0.9))
        for change in self.changes if mood != LOSE else ():
            if mood == KEEP or chance.random() >= lost:
                _rename(found, *change)
        return found


Node = File | Directory


class Disk:
    """The files below `root`, which is on the disk itself."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._top = Directory()
        self._open: dict[int, Node] = {}

    def replay(self, log: bytes) -> int:
        """Apply the calls of a process; return how many there were."""
        count = 0
        for call in calls(log):
            self._take(call)
            count += 1
        return count

    def _take(self, call: Call) -> None:
        if call.kind == OPEN:
            self._opened(call)
        elif call.kind == CLOSE:
            self._open.pop(call.descriptor, None)
        elif call.kind == RENAME:
            self._renamed(call)
        elif call.kind in (UNLINK, MKDIR, LINK):
            where, name = self._parent(call.second or call.first)
            node: Node | None = Directory() if call.kind == MKDIR else None
            if call.kind == LINK:
                old, old_name = self._parent(call.first)
                node = old.names[old_name]
            where.change(name if call.kind == UNLINK else "", name if node is not None else "", node)
        else:
            self._changed(self._open[call.descriptor], call)

    def _opened(self, call: Call) -> None:
        where, name = self._parent(call.first)
        if call.at:
            where.change("", name, File())
        node = where.names[name] if name else where
        if call.size and isinstance(node, File):
            node.resize(0)
        self._open[call.descriptor] = node

    def _renamed(self, call: Call) -> None:
        (old, name), (new, new_name) = self._parent(call.first), self._parent(call.second)
        assert old is new, (call.first, call.second)
        old.change(name, new_name, old.names[name])

    def _changed(self, node: Node, call: Call) -> None:
        if call.kind == SYNC_BEGIN:
            node.begin()
        elif call.kind == SYNC_END:
            node.keep()
        else:
            assert isinstance(node, File)
            if call.kind == WRITE:
                node.write(call.at, call.first)
            elif call.kind == TRUNCATE:
                node.resize(call.size)
            elif call.kind == ALLOCATE:
                node.resize(max(node.size, call.at + call.size))
            elif call.kind == MAP:
                node.is_mapped = True

    def _parent(self, path: bytes) -> tuple[Directory, str]:
        parts = Path(path.decode()).relative_to(self.root).parts
        at = self._top
        for part in parts[:-1]:
            below = at.names[part]
            assert isinstance(below, Directory), path
            at = below
        return at, parts[-1] if parts else ""

    def killed(self) -> None:
        """The process is killed and the machine lives on: what was written is there and still not flushed."""
        for node in self._open.values():
            node.begun.clear()
        self._open = {}

    def flip(self, path: Path, at: int, mask: int) -> None:
        """After a power cut the disk itself changes a flushed byte."""
        where, name = self._parent(os.fsencode(path))
        node = where.names[name]
        assert isinstance(node, File)
        assert not node.writes
        node.kept[at] ^= mask
        path.write_bytes(node.kept)

    def cut(self, chance: random.Random) -> str:
        """Cut the power: choose what is left, make `root` contain exactly that, and return how it was chosen."""
        data, names = chance.choice((KEEP, LOSE, MIXED, MIXED)), chance.choice((KEEP, LOSE, MIXED, MIXED))
        self._mapped(self._top, self.root)
        left = self._left(self._top, chance, data, names)
        for path in self.root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        _make(left, self.root)
        self._top, self._open = left, {}
        return f"data: {data}, names: {names}"

    def _mapped(self, directory: Directory, path: Path) -> None:
        """Apply what was stored through memory maps."""
        for name, node in directory.names.items():
            if isinstance(node, Directory):
                self._mapped(node, path / name)
            elif node.is_mapped:
                node.write(0, (path / name).read_bytes())

    def _left(self, directory: Directory, chance: random.Random, data: str, names: str) -> Directory:
        found = Directory()
        for name, node in directory.after(chance, names).items():
            if isinstance(node, Directory):
                found.kept[name] = self._left(node, chance, data, names)
            else:
                content = node.after(chance, data)
                found.kept[name] = File(content, len(content))
        found.names = dict(found.kept)
        return found


def calls(log: bytes) -> Iterator[Call]:
    """Yield the records; the last one may be cut short by the death of its writer."""
    at = 0
    while at + _HEAD.size <= len(log):
        kind, descriptor, position, size, first, second = _HEAD.unpack_from(log, at)
        start = at + _HEAD.size
        at = start + first + second
        if at > len(log):
            return
        yield Call(kind, descriptor, position, size, log[start : start + first], log[start + first : at])


def _rename(names: dict[str, Node], gone: str, come: str, node: Node | None) -> None:
    if gone and (node is None or names.get(gone) is node):
        names.pop(gone, None)
    if come and node is not None:
        names[come] = node


def _put(content: bytearray, at: int, data: bytes) -> None:
    if at > len(content):
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def _fit(content: bytearray, size: int) -> bytearray:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
    return content


def _sectors(at: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of a write that lie in one sector each."""
    done = 0
    while done < len(data):
        step = min(len(data) - done, SECTOR - (at + done) % SECTOR)
        yield at + done, data[done : done + step]
        done += step


def _make(directory: Directory, path: Path) -> None:
    for name, node in directory.kept.items():
        if isinstance(node, Directory):
            (path / name).mkdir(mode=0o700)
            _make(node, path / name)
        else:
            (path / name).write_bytes(node.kept)
