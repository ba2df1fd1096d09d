"""The replication stream: frames between a replica and its master, one TCP connection, big-endian.

    frame   0 magic u32 "LMR1" | 4 kind u8 | 5 flags u8 | 6 zero u16 | 8 length u32 of the payload | 12 crc32c u32 over
            [0, 12) and the payload | 16 payload
    1 GREETING   down  nonce 16
    2 HELLO      up    version u16 | flags u16 (1 learner) | broker id u64 | epoch known u32 | begin u64 | end u64 |
                       nonce 16 | 3 x (length u16, UTF-8): cluster, group, access key | proof 32
    3 WELCOME    down  epoch u32 | begin u64 | end u64 | n u32 | n x (epoch u32, start u64) | proof 32
    4 REFUSAL    down  reason u16 | epoch u32 | length u16, UTF-8: remark
    5 READY      up    epoch u32 | position u64
    6 TRANSFER   down  epoch of its bytes u32 | epoch start u64 | position u64 | confirm u64 | segment base u64 |
                       segment size u64 | bytes of the log
    7 ACK        up    epoch u32 | flushed end u64
    8 LEAVE      up    (empty) the replica's broker stops: it is not waited for

    replica          master        A TRANSFER without bytes is the heartbeat. Its bytes belong to one epoch and one log
       |   <- GREETING  |          file. An ACK names what is on the replica's disk, never what it has only computed or
       | HELLO ->       |          received. `proof` covers the payload before it.
       |   <- WELCOME   |          The master's epoch of a connection is that of its WELCOME: after a change of role
       | READY ->       |          both start again.
       |   <- TRANSFER* |
       | ACK* ->        |

Proof of the group's secret: each end draws a nonce and signs its part of the handshake together with the other end's
nonce, so that a recorded handshake is useless on another connection. Later frames carry checksums, not signatures: on
a network where others can write into a connection, run it inside TLS or a tunnel.

`Decoder` splits a stream into frames; bytes are received where they are parsed, without a copy:

    buffer   | done | complete frames | an incomplete one | room: the next bytes of the stream go here |
                    '- start                              '- end

If the incomplete frame does not fit behind `start`, its bytes are moved to the front.
Invariants: what does not follow the table is a RemoteViolation when it arrives, and LocalMisuse before it is sent; the
secret appears in no frame and no error; the buffer has one size unless a frame is larger. Pure: bytes in, values out,
nonces from the caller; one decoder per connection and direction.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from broker.replication.epochs import POSITION_MAX, Entry
from remoting.native.checksum import crc32c
from remoting.protocol.errors import LocalMisuse, RemoteViolation

NONCE_BYTES = 16
PROOF_BYTES = 32
NO_PROOF = bytes(PROOF_BYTES)
"""What stands in a frame while the group has no secret."""


def prove(secret: str | None, nonce: bytes, content: bytes) -> bytes:
    """Return the signature of `content` for the end that drew `nonce`."""
    if secret is None:
        return NO_PROOF
    return hmac.new(secret.encode(), b"lightmq replication 1\0" + nonce + content, hashlib.sha256).digest()


def proved(secret: str | None, nonce: bytes, content: bytes, proof: bytes) -> bool:
    """Return whether `proof` shows that its sender has `secret`; without a secret every sender passes."""
    return secret is None or hmac.compare_digest(prove(secret, nonce, content), proof)


MAGIC = 0x4C4D5231
VERSION = 2
"""Of the frames and the records in them: a replica that would overlook some is refused. 2: RECORDS_VERSION 1."""
GREETING, HELLO, WELCOME, REFUSAL, READY, TRANSFER, ACK, LEAVE = range(1, 9)
LEARNER = 1

DATA_BYTES_MAX = 256 * 1024 * 1024
"""Log bytes of one TRANSFER, unless a decoder is given less: a part ends with a record, however large that is."""
EPOCHS_MAX = 65_536
"""Entries of one WELCOME; retention drops the entries of what it drops."""
TEXT_BYTES_MAX = 512
"""Length of a name or remark."""

HEAD = struct.Struct(">IBBHII")
CRC_AT = 12
_HELLO = struct.Struct(f">HHQIQQ{NONCE_BYTES}s")
_WELCOME = struct.Struct(">IQQI")
_ENTRY = struct.Struct(">IQ")
_REFUSAL = struct.Struct(">HI")
_POSITION = struct.Struct(">IQ")
_TRANSFER = struct.Struct(">IQQQQQ")
TRANSFER_HEAD_BYTES = _TRANSFER.size
_LENGTH = struct.Struct(">H")

PAYLOAD_BYTES_MAX = {
    GREETING: NONCE_BYTES,
    HELLO: _HELLO.size + 3 * (_LENGTH.size + TEXT_BYTES_MAX) + PROOF_BYTES,
    WELCOME: _WELCOME.size + EPOCHS_MAX * _ENTRY.size + PROOF_BYTES,
    REFUSAL: _REFUSAL.size + _LENGTH.size + TEXT_BYTES_MAX,
    READY: _POSITION.size,
    TRANSFER: _TRANSFER.size + DATA_BYTES_MAX,
    ACK: _POSITION.size,
    LEAVE: 0,
}
FROM_MASTER = frozenset((GREETING, WELCOME, REFUSAL, TRANSFER))
FROM_REPLICA = frozenset((HELLO, READY, ACK, LEAVE))

# Why a master refuses a replica, or ends its connection.
OTHER_GROUP, NO_PROOF_GIVEN, NOT_MASTER, OLD_EPOCH, EXPIRED, TOO_MANY, UNKNOWN_VERSION = range(1, 8)


@dataclass(frozen=True, slots=True)
class Greeting:
    """The master's first word."""

    nonce: bytes


@dataclass(frozen=True, slots=True)
class Hello:
    """The replica that connects, and the extent of its log."""

    broker: int
    epoch: int
    """The newest master epoch it knows of."""
    begin: int
    end: int
    nonce: bytes
    cluster: str
    group: str
    access_key: str = ""
    is_learner: bool = False
    version: int = VERSION
    signed: bytes = b""
    """What the proof covers."""
    proof: bytes = bytes(PROOF_BYTES)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The master's epoch, its log and its epoch list."""

    epoch: int
    begin: int
    end: int
    epochs: Sequence[Entry]
    signed: bytes = b""
    proof: bytes = bytes(PROOF_BYTES)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no stream, or why it ends."""

    reason: int
    epoch: int
    remark: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The replica has truncated its log durably and continues at `position`."""

    epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes of the log, or none: a heartbeat."""

    epoch: int
    epoch_start: int
    position: int
    confirm: int
    segment_base: int
    segment_size: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Ack:
    """Everything below `end` is on the replica's disk."""

    epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The replica's broker stops."""


Frame = Greeting | Hello | Welcome | Refusal | Ready | Transfer | Ack | Leave


# -- out ------------------------------------------------------------------------------------------------------------


def _framed(kind: int, payload: bytes, data: bytes | memoryview = b"") -> bytes:
    head = HEAD.pack(MAGIC, kind, 0, 0, len(payload) + len(data), 0)[:CRC_AT]
    return head + crc32c(data, crc32c(payload, crc32c(head))).to_bytes(4, "big") + payload


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) > TEXT_BYTES_MAX:
        raise LocalMisuse(f"a name of {len(data)} bytes does not fit into the handshake")
    return _LENGTH.pack(len(data)) + data


def encode_greeting(greeting: Greeting) -> bytes:
    """Return the frame."""
    return _framed(GREETING, greeting.nonce)


def encode_hello(hello: Hello, prove: Callable[[bytes], bytes]) -> bytes:
    """Return the frame; `prove` signs its content."""
    flags = LEARNER if hello.is_learner else 0
    signed = _HELLO.pack(hello.version, flags, hello.broker, hello.epoch, hello.begin, hello.end, hello.nonce)
    signed += _text(hello.cluster) + _text(hello.group) + _text(hello.access_key)
    return _framed(HELLO, signed + prove(signed))


def encode_welcome(welcome: Welcome, prove: Callable[[bytes], bytes]) -> bytes:
    """Return the frame; `prove` signs its content."""
    entries = welcome.epochs[-EPOCHS_MAX:]
    signed = _WELCOME.pack(welcome.epoch, welcome.begin, welcome.end, len(entries))
    signed += b"".join(_ENTRY.pack(epoch, start) for epoch, start in entries)
    return _framed(WELCOME, signed + prove(signed))


def encode_refusal(refusal: Refusal) -> bytes:
    """Return the frame; a remark that is too long is cut."""
    remark = refusal.remark.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")
    return _framed(REFUSAL, _REFUSAL.pack(refusal.reason, refusal.epoch) + _text(remark))


def encode_ready(ready: Ready) -> bytes:
    """Return the frame."""
    return _framed(READY, _POSITION.pack(ready.epoch, ready.position))


def encode_ack(ack: Ack) -> bytes:
    """Return the frame."""
    return _framed(ACK, _POSITION.pack(ack.epoch, ack.end))


def encode_leave() -> bytes:
    """Return the frame."""
    return _framed(LEAVE, b"")


def encode_transfer_head(transfer: Transfer) -> bytes:
    """Return the frame without the log's bytes, which follow it as they are, so that they are not copied."""
    if len(transfer.data) > DATA_BYTES_MAX:
        raise LocalMisuse(f"a transfer takes {DATA_BYTES_MAX} bytes, not {len(transfer.data)}")
    payload = _TRANSFER.pack(
        transfer.epoch,
        transfer.epoch_start,
        transfer.position,
        transfer.confirm,
        transfer.segment_base,
        transfer.segment_size,
    )
    return _framed(TRANSFER, payload, transfer.data)


# -- in -------------------------------------------------------------------------------------------------------------


def _exactly(payload: bytes, size: int, what: str) -> None:
    if len(payload) != size:
        raise RemoteViolation(f"{what}: {len(payload)} bytes instead of {size}")


def _place(what: str, *positions: int) -> None:
    if max(positions) > POSITION_MAX:
        raise RemoteViolation(f"{what}: {max(positions)} is no position")


def _read_text(payload: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(payload, at)
    at += _LENGTH.size
    if length > TEXT_BYTES_MAX or at + length > len(payload):
        raise RemoteViolation(f"a text of {length} bytes")
    return payload[at : at + length].decode(), at + length


def _greeting(payload: bytes) -> Greeting:
    _exactly(payload, NONCE_BYTES, "greeting")
    return Greeting(payload)


def _hello(payload: bytes) -> Hello:
    version, flags, broker, epoch, begin, end, nonce = _HELLO.unpack_from(payload)
    cluster, at = _read_text(payload, _HELLO.size)
    group, at = _read_text(payload, at)
    access_key, at = _read_text(payload, at)
    _exactly(payload, at + PROOF_BYTES, "hello")
    _place("hello", broker, begin, end)
    if begin > end:
        raise RemoteViolation(f"hello: a log from {begin} to {end}")
    return Hello(
        broker, epoch, begin, end, nonce, cluster, group, access_key,
        bool(flags & LEARNER), version, payload[:at], payload[at:],
    )  # fmt: skip


def _welcome(payload: bytes) -> Welcome:
    epoch, begin, end, count = _WELCOME.unpack_from(payload)
    at = _WELCOME.size + count * _ENTRY.size
    _exactly(payload, at + PROOF_BYTES, "welcome")
    _place("welcome", begin, end)
    if begin > end:
        raise RemoteViolation(f"welcome: a log from {begin} to {end}")
    entries = list(_ENTRY.iter_unpack(payload[_WELCOME.size : at]))
    return Welcome(epoch, begin, end, entries, payload[:at], payload[at:])


def _refusal(payload: bytes) -> Refusal:
    reason, epoch = _REFUSAL.unpack_from(payload)
    remark, at = _read_text(payload, _REFUSAL.size)
    _exactly(payload, at, "refusal")
    return Refusal(reason, epoch, remark)


def _ready(payload: memoryview) -> Ready:
    epoch, position = _POSITION.unpack(payload)
    _place("ready", position)
    return Ready(epoch, position)


def _ack(payload: memoryview) -> Ack:
    epoch, end = _POSITION.unpack(payload)
    _place("ack", end)
    return Ack(epoch, end)


def _leave(payload: bytes) -> Leave:
    _exactly(payload, 0, "leave")
    return Leave()


def _transfer(payload: memoryview) -> Transfer:
    epoch, epoch_start, position, confirm, base, size = _TRANSFER.unpack_from(payload)
    data = payload[_TRANSFER.size :]
    _place("transfer", epoch_start, position + len(data), confirm, base + size)
    if data and not (epoch_start <= position and base <= position and position + len(data) <= base + size):
        raise RemoteViolation(
            f"transfer: {len(data)} bytes at {position} lie outside their epoch from {epoch_start} on "
            f"or their file of {size} bytes at {base}"
        )
    return Transfer(epoch, epoch_start, position, confirm, base, size, data)


_READERS: dict[int, Callable[[Any], Frame]] = {
    GREETING: _greeting,
    HELLO: _hello,
    WELCOME: _welcome,
    REFUSAL: _refusal,
    READY: _ready,
    TRANSFER: _transfer,
    ACK: _ack,
    LEAVE: _leave,
}


_NUMBERS = frozenset((READY, TRANSFER, ACK))
"""Frames without texts, which are read from anything that has bytes."""


def read_frame(kind: int, payload: memoryview) -> Frame:
    """Return the frame; the bytes of a TRANSFER are a view of the payload. Raises RemoteViolation."""
    try:
        return _READERS[kind](payload if kind in _NUMBERS else bytes(payload))
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteViolation(f"frame of kind {kind}: {error}") from error


BUFFER_BYTES = 4 * 1024
"""Enough for the frames of a replica."""


class Decoder:
    """Frames out of arbitrary chunks of bytes, of the kinds that may come from that side.

    The bytes of a TRANSFER are a view of the decoder's buffer, sound until the next frame is asked for or more is fed.
    The buffer is there from the first `room` on: bytes that come as whole frames are read where they are.
    """

    def __init__(
        self, kinds: frozenset[int], data_bytes_max: int = DATA_BYTES_MAX, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        self._limits = {kind: PAYLOAD_BYTES_MAX[kind] for kind in kinds}
        if TRANSFER in kinds:
            self._limits[TRANSFER] = TRANSFER_HEAD_BYTES + data_bytes_max
        self._view = memoryview(b"")
        self._usual_bytes = buffer_bytes
        self._start = self._end = 0
        self._frame_bytes = HEAD.size
        """Size of the frame at `start`, as far as it is known."""
        self._failed: RemoteViolation | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the frame that has not arrived in full."""
        return self._end - self._start

    def room(self) -> memoryview:
        """Return where the next bytes of the stream go; pass their number to `filled`."""
        start, end, view = self._start, self._end, self._view
        if start == end:
            self._start = self._end = 0
        elif start + self._frame_bytes > len(view):
            self._start, self._end = 0, end - start
        size = max(self._frame_bytes, self._usual_bytes)
        if len(view) < size or (len(view) > size and not self._start):
            self._view = memoryview(bytearray(size))
        if self._end and (self._view is not view or self._start != start):
            self._view[: self._end] = view[start:end]
        return self._view[self._end :]

    def filled(self, count: int) -> Iterator[Frame]:
        """Yield the frames that the next `count` bytes complete. Raises RemoteViolation, then and ever after."""
        self._end += count
        while self._end - self._start >= HEAD.size:
            frame = self._frame(self._view, self._start, self._end)
            if frame is None:
                return
            self._start += self._frame_bytes
            self._frame_bytes = HEAD.size
            yield frame

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the frames that `chunk` completes. Raises RemoteViolation, then and ever after."""
        at, size = 0, len(chunk)
        if self._start == self._end:  # the usual case: whole frames, read where they are
            whole = memoryview(chunk)
            while size - at >= HEAD.size:
                frame = self._frame(whole, at, size)
                if frame is None:
                    break
                at += self._frame_bytes
                self._frame_bytes = HEAD.size
                yield frame
        while at < size:
            room = self.room()
            count = min(len(room), size - at)
            room[:count] = chunk[at : at + count]
            at += count
            yield from self.filled(count)

    def _frame(self, view: memoryview, at: int, end: int) -> Frame | None:
        """Return the frame at `at`, None when not all of it is there; sets `frame_bytes`."""
        try:
            if self._failed is not None:
                raise self._failed
            magic, kind, flags, zero, length, checksum = HEAD.unpack_from(view, at)
            limit = self._limits.get(kind, -1)
            if magic != MAGIC or length > limit or flags or zero:
                raise _unexpected(magic, kind, flags, length, limit)
            self._frame_bytes = HEAD.size + length
            if end - at < self._frame_bytes:
                return None
            payload = view[at + HEAD.size : at + HEAD.size + length]
            if crc32c(payload, crc32c(view[at : at + CRC_AT])) != checksum:
                raise RemoteViolation("a replication frame fails its checksum")
            return read_frame(kind, payload)
        except RemoteViolation as violation:
            self._failed = violation
            self._start = self._end
            raise


def _unexpected(magic: int, kind: int, flags: int, length: int, limit: int) -> RemoteViolation:
    if magic != MAGIC:
        return RemoteViolation(f"not a replication frame: magic {magic:#010x}")
    if limit < 0 or length <= limit:
        return RemoteViolation(f"unexpected frame: kind {kind}, flags {flags}")
    return RemoteViolation(f"frame of kind {kind}: {length} bytes are more than {limit}")
