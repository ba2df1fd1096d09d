"""The two small files beside a journal, each whole or refused: the snapshot, and what a controller voted.

    u32 CRC32C of the rest | msgpack                                                  replaced atomically, fsynced

`snapshot` holds the two entries it ends with and the machine's state after the second; `vote` the term, whom this
controller voted for in it, how far it knew the log to be committed, and who takes part.
Invariant: damage is told, never read over: a forgotten vote could elect two leaders in one term.
Thread rule: all calls block.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from controller.consensus.journal import Entry
from remoting.native.checksum import crc32c
from remoting.protocol.errors import LocalMisuse, RemoteViolation
from runtime.files import atomic_replace

_CHECKSUM_BYTES = 4
SNAPSHOT_BYTES_MAX = 256 * 1024 * 1024
"""Largest snapshot that is taken from a leader."""


class Snapshot(msgspec.Struct, array_like=True):
    """State of the machine after `last`."""

    before: Entry
    last: Entry
    state: bytes


class Vote(msgspec.Struct, array_like=True):
    """What a controller must remember to keep its word."""

    term: int = 0
    voted_for: str | None = None
    committed: int = 1
    members: tuple[str, ...] = ()
    voter: bool = False
    """Whether it had everything that was committed once: an empty newcomer must not vote for others' logs."""


Content = TypeVar("Content", Snapshot, Vote)


def save(path: Path, content: Snapshot | Vote) -> None:
    """Replace the file durably. Raises OSError."""
    body = msgspec.msgpack.encode(content)
    atomic_replace(path, crc32c(body).to_bytes(_CHECKSUM_BYTES, "little") + body)


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
    """A snapshot that comes over the network piece by piece."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def take(self, piece: bytes, *, first: bool, last: bool) -> Snapshot | None:
        """The snapshot once its last piece is here. Raises RemoteViolation, after which it must begin anew."""
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
            return unpack(data, Snapshot, "a snapshot of the leader")
        except LocalMisuse as error:
            raise RemoteViolation(str(error)) from error
