"""The connection between two controllers: an authenticated, encrypted stream of messages, as bytes in and bytes out.

    hello     "LMQRAFT1" | u8 length of node id | node id | 32 random bytes      once in each direction, in the clear
    frame     u32 length (little-endian) | AES-256-GCM of a message              nonce: number of the frame; AAD: length

Keys come from the shared secret, both node ids and both random values, one per direction, so that bytes of one
connection are invalid on another and in the other direction. The first frame of each side is empty and proves that
it has the secret; until then a peer can make us buffer no more than a few hundred bytes. Messages are msgpack of
declared types: no byte of the network, proven or not, is ever unpickled. Invariant: after one violation a session gives
no more messages. Sans I/O: random values come from the caller.

The library's messages (dictionaries) as our types and back; unused ones have no form on the wire.

Not used and so impossible to receive: forwarded commands, membership changes, transfers of leadership, versions and
entries in pieces; the library unpickles some of these. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from controller.raft.messages import Founded, Join, JoinReply
from remoting.protocol.errors import RemoteViolation

MAGIC = b"LMQRAFT1"
DLEDGER_MAGIC = b"LMQRAFT2"
"""Of connections between controllers with the other engine."""
COMMANDS_KNOWN = 2
"""Which commands of the replicated log this release understands: 1 has the users (ChangeUsers), 2 the group that has
MQTT (PlaceMqtt). A controller that does not understand a command leaves it out and differs from the others from then
on, so that a command of a later number is not proposed before every member has said that it knows it."""
RANDOM_BYTES = 32
NODE_ID_BYTES_MAX = 64
FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Largest frame of a proven peer."""
TAG_BYTES = 16
_LENGTH = struct.Struct("<I")
_HELLO_FIXED = len(MAGIC) + 1


class RequestVote(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Vote for the sender in this term."""

    term: int
    last_index: int
    last_term: int


class Granted(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """The sender voted for the receiver in this term."""

    term: int


class Append(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Entries that follow one the receiver should have; none: the leader is there."""

    term: int
    committed: int
    before_index: int
    before_term: int
    entries: list[tuple[bytes, int, int]]


class Install(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """A piece of the leader's snapshot; none yet: the leader is there."""

    term: int
    committed: int
    piece: bytes = b""
    first: bool = False
    last: bool = False


class NextIndex(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Where the sender's log continues; `success`: everything before is on its disk and equals the leader's.

    `commands` is COMMANDS_KNOWN of the sender. Releases without it leave it out and overlook it.
    """

    term: int
    next_index: int
    reset: bool
    success: bool
    commands: int = 0


class PreVote(msgspec.Struct, tag=6, array_like=True, frozen=True):
    """Would the receiver vote for the sender in this term, which has not begun?"""

    term: int
    last_index: int
    last_term: int


class PreGranted(msgspec.Struct, tag=7, array_like=True, frozen=True):
    """The sender would get the vote: there is no leader, and its log is not behind."""

    term: int


Message = RequestVote | Granted | Append | Install | NextIndex | PreVote | PreGranted | Founded | Join | JoinReply
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def stretch(secret: bytes) -> bytes:
    """The secret as a key; slow on purpose, once per process, so that a weak secret cannot be tried quickly."""
    return hashlib.scrypt(secret, salt=b"lightmq controllers 1", n=2**14, r=8, p=1, dklen=32)


def encode_message(message: Message) -> bytes:
    """A message for a frame."""
    return msgspec.msgpack.encode(message)


def decode_message(data: bytes) -> Message:
    """The message in a frame; RemoteViolation when it is none."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RemoteViolation(f"no message of a controller: {error}") from error


class SecureChannel:
    """One connection between two controllers, seen from one side."""

    def __init__(
        self,
        key: bytes,
        own_id: str,
        members: Iterable[str] | None,
        random: bytes,
        *,
        dialed: str | None,
        magic: bytes = MAGIC,
    ) -> None:
        """`dialed` is the peer this side dialled; None when it accepted the connection and the peer names itself.

        `members`: whom this side talks to; None: whoever has the secret, its caller judges them.
        """
        assert len(random) == RANDOM_BYTES
        self.peer: str | None = dialed
        self.proven = False
        self._key = key
        self._magic = magic
        self._own_id = own_id
        self._members = None if members is None else frozenset(members)
        self._random = random
        self._dialed = dialed is not None
        self._buffer = bytearray()
        self._dead = False
        self._opener: AESGCM | None = None
        self._sealer: AESGCM | None = None
        self._opened = 0
        self._sealed = 0

    def hello(self) -> bytes:
        """The first bytes to send."""
        node_id = self._own_id.encode()
        return self._magic + bytes([len(node_id)]) + node_id + self._random

    def seal(self, data: bytes) -> bytes:
        """A frame with these bytes; only after the other side's hello."""
        assert self._sealer is not None
        head = _LENGTH.pack(len(data) + TAG_BYTES)
        frame: bytes = head + self._sealer.encrypt(self._sealed.to_bytes(12, "little"), data, head)
        self._sealed += 1
        return frame

    def feed(self, data: bytes) -> tuple[bytes, list[bytes]]:
        """Bytes received: (bytes to send at once, contents of whole frames that are not empty)."""
        if self._dead:
            return b"", []
        self._buffer += data
        try:
            answer = b""
            if self._opener is None and self._take_hello():
                answer = self.seal(b"")
            return answer, list(self._frames())
        except RemoteViolation:
            self._dead = True
            self._buffer.clear()
            raise

    def _take_hello(self) -> bool:
        buffer = self._buffer
        start = bytes(buffer[: len(MAGIC)])
        if not self._magic.startswith(start):
            if start in (MAGIC, DLEDGER_MAGIC):
                raise RemoteViolation("it agrees by the other engine: set controller.raft_engine to the same on each")
            raise RemoteViolation("it does not use the controllers' protocol")
        if len(buffer) < _HELLO_FIXED:
            return False
        length = buffer[_HELLO_FIXED - 1]
        if not 0 < length <= NODE_ID_BYTES_MAX:
            raise RemoteViolation(f"its node id has {length} bytes")
        end = _HELLO_FIXED + length + RANDOM_BYTES
        if len(buffer) < end:
            return False
        peer = bytes(buffer[_HELLO_FIXED : _HELLO_FIXED + length]).decode(errors="replace")
        strange = self._members is not None and peer not in self._members
        if strange or (self._dialed and peer != self.peer):
            raise RemoteViolation("it is none of the controllers expected here")
        if peer == self._own_id:
            raise RemoteViolation(f"it has the node id of this controller, {peer}: give each controller its own")
        self.peer = peer
        self._derive(peer, bytes(buffer[_HELLO_FIXED + length : end]))
        del buffer[:end]
        return True

    def _derive(self, peer: str, random: bytes) -> None:
        own, other = (self._own_id.encode(), self._random), (peer.encode(), random)
        dialer, called = (own, other) if self._dialed else (other, own)
        context = b"".join(bytes([len(part)]) + part for part in (*dialer, *called))
        keys = [AESGCM(hmac.digest(self._key, each + context, "sha256")) for each in (b"dialer", b"called")]
        self._sealer, self._opener = keys if self._dialed else keys[::-1]

    def _frames(self) -> Iterable[bytes]:
        while self._opener is not None and len(self._buffer) >= _LENGTH.size:
            head = bytes(self._buffer[: _LENGTH.size])
            (length,) = _LENGTH.unpack(head)
            limit = FRAME_BYTES_MAX if self.proven else TAG_BYTES
            if not TAG_BYTES <= length <= limit:
                raise RemoteViolation(f"a frame of {length} bytes, at most {limit} are taken")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            content = self._open(bytes(self._buffer[_LENGTH.size : end]), head)
            del self._buffer[:end]
            if content:
                yield content

    def _open(self, data: bytes, head: bytes) -> bytes:
        assert self._opener is not None
        try:
            content: bytes = self._opener.decrypt(self._opened.to_bytes(12, "little"), data, head)
        except InvalidTag as error:
            raise RemoteViolation("its secret is another one, or its bytes were changed on the way") from error
        self._opened += 1
        self.proven = True
        return content


def from_library(message: dict[str, Any]) -> Message:
    """A message the library sends. An unknown kind is our own bug."""
    kind, term = message["type"], message["term"]
    if kind == "request_vote":
        return RequestVote(term, message["last_log_index"], message["last_log_term"])
    if kind == "response_vote":
        return Granted(term)
    if kind == "next_node_idx":
        return NextIndex(term, message["next_node_idx"], message["reset"], message["success"])
    assert kind == "append_entries", kind
    assert "transmission" not in message, "a command is larger than a batch"
    if "prevLogIdx" in message:
        entries = [(bytes(command), index, of_term) for command, index, of_term in message["entries"]]
        return Append(term, message["commit_index"], message["prevLogIdx"], message["prevLogTerm"], entries)
    piece, first, last = message["serialized"] or (b"", False, False)
    return Install(term, message["commit_index"], bytes(piece), first, last)


def to_library(message: Message) -> dict[str, Any]:
    """A message as the library takes it; snapshots and pre-votes are ours and stand in it whole under `own`."""
    if isinstance(message, PreVote | PreGranted | Founded | Join | JoinReply):
        return {"type": "own", "term": message.term, "own": message}
    if isinstance(message, RequestVote):
        last = {"last_log_index": message.last_index, "last_log_term": message.last_term}
        return {"type": "request_vote", "term": message.term, **last}
    if isinstance(message, Granted):
        return {"type": "response_vote", "term": message.term}
    if isinstance(message, NextIndex):
        return {
            "type": "next_node_idx",
            "term": message.term,
            "next_node_idx": message.next_index,
            "reset": message.reset,
            "success": message.success,
        }
    shared = {"type": "append_entries", "term": message.term, "commit_index": message.committed}
    if isinstance(message, Append):
        before = {"prevLogIdx": message.before_index, "prevLogTerm": message.before_term}
        return {**shared, **before, "entries": message.entries}
    return {**shared, "own": message}
