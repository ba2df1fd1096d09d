"""What a controller keeps on disk for consensus: the entries of the log, and two small files beside them.

Entries: appended, cut at either end, checked by checksums, fsynced on `sync`.

    "LMQJRNL2"                                                                        8 bytes
    entries: u32 magic | u32 length of command | u32 CRC32C of what follows | u64 index | u64 term | command
                                                                                      little-endian, back to back

The magic of an entry shows whether everything before it was on the disk when it was written (MAGIC_AFTER_SYNC) or
still under way to it (MAGIC). Invariant: after `sync` what was added survives a power cut. Cutting the head replaces
the file atomically, cutting the tail is durable before the call returns, so a cut entry never reappears. At
the start a torn tail is dropped: a power cut may take any sectors of what was not synced, also the first ones. Damage
before an entry with MAGIC_AFTER_SYNC is refused, because it may have been acknowledged. A file of
version 1 ("LMQJRNL1", only MAGIC) is refused by any damage in front of a sound entry, and replaced by one of version 2.

Snapshot and vote, each whole or refused.

    u32 CRC32C of the rest | msgpack                                                  replaced atomically, fsynced

`snapshot` holds the two entries it ends with and the machine's state after the second; `vote` the term, this
controller's vote in it, how far it knew the log to be committed, and the members.
Invariant: damage is reported, never read over: a forgotten vote could elect two leaders in one term.
Thread rule: all calls block; one thread at a time.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TypeVar

import msgspec

from remoting.native.checksum import crc32c
from remoting.protocol.errors import LocalMisuse, RemoteViolation
from runtime.files import atomic_replace, atomic_write, fsync_dir

HEADER = b"LMQJRNL2"
FORMER_HEADER = b"LMQJRNL1"
MAGIC = 0x4A514D4C
MAGIC_AFTER_SYNC = 0x4B514D4C
_HEAD = struct.Struct("<III")
_PLACE = struct.Struct("<QQ")
_OVERHEAD = _HEAD.size + _PLACE.size

Entry = tuple[bytes, int, int]
"""(command, index, term)."""


class JournalDamaged(LocalMisuse):
    """Bytes in the middle of the journal changed."""

    def __init__(self, path: Path, position: int) -> None:
        super().__init__(
            f"{path} is damaged at byte {position}: with other controllers alive, empty this one's data directory and "
            f"let it catch up; alone, put back a copy"
        )


class Journal:
    """The entries of one controller's log, all of them in memory too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: list[Entry] = []
        self._ends: list[int] = []
        """End of each entry in the file."""
        self._unsynced = False
        self.syncs = 0
        if not path.exists():
            atomic_write(path, (HEADER,))
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        data = path.read_bytes()
        self._end = self._read(data)
        # Who wrote the last entries, or replaced a file beside them, may have been killed before that was durable.
        os.fdatasync(self._descriptor)
        fsync_dir(path.parent)
        if data.startswith(FORMER_HEADER):
            self.replace(list(self._entries))

    @property
    def open(self) -> bool:
        """Whether it can still be written."""
        return self._descriptor >= 0

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, place: int) -> Entry:
        return self._entries[place]

    def part(self, start: int, end: int | None = None) -> list[Entry]:
        """Entries by their place in the journal, the first being 0."""
        return self._entries[start:end]

    def add(self, entry: Entry) -> None:
        """Append; durable at the next `sync`. Raises OSError, after which this journal must not be used again."""
        data = _pack(entry, after_sync=not self._unsynced)
        _pwrite_all(self._descriptor, data, self._end)
        self._end += len(data)
        self._entries.append(entry)
        self._ends.append(self._end)
        self._unsynced = True

    def sync(self) -> None:
        """Make what was added durable. Raises OSError, after which this journal must not be used again."""
        if self._unsynced:
            os.fdatasync(self._descriptor)
            self._unsynced = False
            self.syncs += 1

    def cut_tail(self, place: int) -> None:
        """Remove the entries from this place on, durably."""
        if place >= len(self._entries):
            return
        del self._entries[place:], self._ends[place:]
        self._end = self._ends[-1] if self._ends else len(HEADER)
        os.ftruncate(self._descriptor, self._end)
        os.fsync(self._descriptor)
        self._unsynced = False

    def cut_head(self, place: int) -> None:
        """Remove the entries before this place, durably and at once."""
        if place > 0:
            self.replace(self._entries[place:])

    def replace(self, entries: list[Entry]) -> None:
        """Have exactly these entries, durably; a crash leaves the old ones or the new ones."""
        pieces = [HEADER, *(_pack(entry, after_sync=True) for entry in entries)]
        # The names of other files in the directory (the snapshot these entries follow) become durable first.
        fsync_dir(self.path.parent)
        atomic_write(self.path, pieces)
        os.close(self._descriptor)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self._entries = list(entries)
        self._ends = []
        self._end = len(HEADER)
        for piece in pieces[1:]:
            self._end += len(piece)
            self._ends.append(self._end)
        self._unsynced = False

    def close(self) -> None:
        """Sync and close; more than once is fine."""
        if self._descriptor >= 0:
            self.sync()
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self, data: bytes) -> int:
        if not data.startswith((HEADER, FORMER_HEADER)):
            raise JournalDamaged(self.path, 0)
        at = len(HEADER)
        while True:
            entry = _unpack(data, at)
            if entry is None or (self._entries and entry[1] != self._entries[-1][1] + 1):
                break
            at += _OVERHEAD + len(entry[0])
            self._entries.append(entry)
            self._ends.append(at)
        if at < len(data):
            if _sound_behind(data, at, MAGIC_AFTER_SYNC if data.startswith(HEADER) else MAGIC):
                raise JournalDamaged(self.path, at)
            os.ftruncate(self._descriptor, at)
            os.fsync(self._descriptor)
        return at


def _pack(entry: Entry, *, after_sync: bool) -> bytes:
    command, index, term = entry
    rest = _PLACE.pack(index, term) + command
    return _HEAD.pack(MAGIC_AFTER_SYNC if after_sync else MAGIC, len(command), crc32c(rest)) + rest


def _unpack(data: bytes, at: int) -> Entry | None:
    if at + _OVERHEAD > len(data):
        return None
    magic, length, checksum = _HEAD.unpack_from(data, at)
    end = at + _OVERHEAD + length
    if magic not in (MAGIC, MAGIC_AFTER_SYNC) or end > len(data):
        return None
    if crc32c(data[at + _HEAD.size : end]) != checksum:
        return None
    index, term = _PLACE.unpack_from(data, at + _HEAD.size)
    return data[at + _OVERHEAD : end], index, term


def _sound_behind(data: bytes, at: int, magic: int) -> bool:
    """Whether a whole entry with this magic lies behind the first byte that is not one."""
    wanted = magic.to_bytes(4, "little")
    found = data.find(wanted, at + 1)
    while found >= 0:
        if _unpack(data, found) is not None:
            return True
        found = data.find(wanted, found + 1)
    return False


def _pwrite_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


_CHECKSUM_BYTES = 4
SNAPSHOT_BYTES_MAX = 256 * 1024 * 1024
"""Largest snapshot that is taken from a leader."""


class RaftSnapshot(msgspec.Struct, array_like=True):
    """State of the machine after `last`."""

    before: Entry
    last: Entry
    state: bytes
    members: bytes = b""
    """The entry that named the members then; empty: those that were configured."""


class Vote(msgspec.Struct, array_like=True):
    """What a controller must remember to keep its word."""

    term: int = 0
    voted_for: str | None = None
    committed: int = 1
    members: tuple[str, ...] = ()
    voter: bool = False
    """Whether it had everything that was committed once: an empty newcomer must not vote for others' logs."""
    identity: str = ""
    """Of this directory, made at its first start: with an empty one, a controller is another one."""
    group: str = ""
    """Of the controllers it belongs to, once that is committed."""


Content = TypeVar("Content", RaftSnapshot, Vote)


def save(path: Path, content: RaftSnapshot | Vote) -> None:
    """Replace the file durably. Raises OSError."""
    atomic_replace(path, pack(content))


def pack(content: RaftSnapshot | Vote) -> bytes:
    """The bytes of its file."""
    body = msgspec.msgpack.encode(content)
    return crc32c(body).to_bytes(_CHECKSUM_BYTES, "little") + body


def load(path: Path, kind: type[Content]) -> Content | None:
    """The content, None where there is no file. Raises LocalMisuse on damage."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return unpack(data, kind, str(path))


def unpack(data: bytes, kind: type[Content], name: str) -> Content:
    """The content of these bytes of a file. Raises LocalMisuse on damage."""
    body = data[_CHECKSUM_BYTES:]
    try:
        if crc32c(body) != int.from_bytes(data[:_CHECKSUM_BYTES], "little"):
            raise ValueError("its checksum is wrong")
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise LocalMisuse(
            f"{name} is damaged ({error}): with other controllers alive, empty this one's data directory and let it "
            f"catch up; alone, put back a copy"
        ) from error


class SnapshotPieces:
    """A snapshot received over the network piece by piece."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def take(self, piece: bytes, *, first: bool, last: bool) -> RaftSnapshot | None:
        """The snapshot once its last piece is here. Raises RemoteViolation, after which it must start over."""
        if first:
            self._bytes.clear()
        self._bytes += piece
        if len(self._bytes) > SNAPSHOT_BYTES_MAX:
            self._bytes.clear()
            raise RemoteViolation(f"a snapshot above {SNAPSHOT_BYTES_MAX} bytes")
        if not last or not self._bytes:
            return None
        data, self._bytes = bytes(self._bytes), bytearray()
        try:
            return unpack(data, RaftSnapshot, "a snapshot of the leader")
        except LocalMisuse as error:
            raise RemoteViolation(str(error)) from error
