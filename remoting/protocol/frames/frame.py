"""Length-prefixed frames of the remoting protocol: bytes <-> commands.

    u32 length (of what follows) | u8 serialise type, u24 header length | header | body        big-endian

Invariant: feeding a byte stream in any pieces yields the same commands; after one violation the decoder is dead and
swallows everything, because nothing behind a broken length can be trusted. Thread rule: one decoder belongs to one
connection and is not thread-safe; encode_frame is pure.
"""

from __future__ import annotations

import struct

from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.header import decode_header, encode_header

FRAME_SIZE_BYTES_MAX = 16_777_216
"""Largest frame accepted by default, as RocketMQ's own limit; a longer one closes the connection."""
_HEADER_LENGTH_MAX = 0xFFFFFF
_PREFIX = struct.Struct(">II")
_PREFIX_SIZE = _PREFIX.size
_WORD_SIZE = 4
_VIEW_WORTH = 65_536
"""Bytes of a body from which a view of the buffer costs less than a slice of it."""


def encode_frame(command: Command) -> bytes:
    """Return the whole frame of `command`; LocalMisuse if its header cannot be written."""
    header = encode_header(command)
    header_length = len(header)
    if header_length > _HEADER_LENGTH_MAX:
        raise LocalMisuse(f"header of {header_length} bytes, a frame carries at most {_HEADER_LENGTH_MAX}")
    body = command.body
    prefix = _PREFIX.pack(_WORD_SIZE + header_length + len(body), command.serialize_type << 24 | header_length)
    return b"".join((prefix, header, body))


class FrameDecoder:
    """Turns the bytes of one connection into commands; `feed` raises RemoteViolation once, then stays dead."""

    __slots__ = ("_buffer", "_dead", "_frame_size_bytes_max", "_wanted_bytes")

    def __init__(self, frame_size_bytes_max: int = FRAME_SIZE_BYTES_MAX) -> None:
        self._frame_size_bytes_max = frame_size_bytes_max
        self._buffer = bytearray()
        self._wanted_bytes = _PREFIX_SIZE
        self._dead = False

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an unfinished frame held back."""
        return len(self._buffer)

    @property
    def frame_bytes(self) -> int:
        """Size of the unfinished frame, as far as its first bytes tell."""
        return self._wanted_bytes

    def unfinished_head(self) -> Command | None:
        """The header of the unfinished frame, without its body; None while it is not there. Raises RemoteViolation."""
        if len(self._buffer) < _PREFIX_SIZE:
            return None
        _, word = _PREFIX.unpack_from(self._buffer)
        body_at = _PREFIX_SIZE + (word & _HEADER_LENGTH_MAX)
        if len(self._buffer) < body_at:
            return None
        return decode_header(word >> 24, bytes(self._buffer[_PREFIX_SIZE:body_at]), b"")

    def feed(self, data: bytes | bytearray | memoryview) -> list[Command]:
        """Return the commands completed by `data`; those before a violation in the same piece are given up with it."""
        if self._dead:
            return []
        buffer = self._buffer
        if buffer:
            buffer += data
            # A long frame arrives in many pieces: look at it again only when all of it is there.
            if len(buffer) < self._wanted_bytes:
                return []
            source: bytes | bytearray = buffer
        else:
            source = data if data.__class__ is bytes else bytes(data)
        try:
            commands, consumed = self._parse(source)
        except RemoteViolation:
            self._dead = True
            self._buffer = bytearray()
            raise
        if source is buffer:
            del buffer[:consumed]
        elif consumed < len(source):
            buffer += source[consumed:]
        return commands

    def _parse(self, source: bytes | bytearray) -> tuple[list[Command], int]:
        """Return the whole frames at the start of `source` and how many bytes they took."""
        commands: list[Command] = []
        at, end = 0, len(source)
        unpack_from = _PREFIX.unpack_from
        while end - at >= _PREFIX_SIZE:
            length, word = unpack_from(source, at)
            header_length = word & _HEADER_LENGTH_MAX
            if length + _WORD_SIZE > self._frame_size_bytes_max:
                raise RemoteViolation(
                    f"frame of {length + _WORD_SIZE} bytes, the limit is {self._frame_size_bytes_max}"
                )
            if header_length + _WORD_SIZE > length:
                raise RemoteViolation(f"header of {header_length} bytes in a frame of {length}")
            frame_end = at + _WORD_SIZE + length
            if frame_end > end:
                self._wanted_bytes = frame_end - at
                return commands, at
            header_at = at + _PREFIX_SIZE
            body_at = header_at + header_length
            # Slices of a bytearray are copied to bytes: the buffer moves on, commands stay.
            header = bytes(source[header_at:body_at])
            if frame_end - body_at < _VIEW_WORTH:
                body = bytes(source[body_at:frame_end])
            else:  # one copy of a large body instead of two; the view must be gone before the buffer moves on
                with memoryview(source) as view:
                    body = bytes(view[body_at:frame_end])
            commands.append(decode_header(word >> 24, header, body))
            at = frame_end
        self._wanted_bytes = _PREFIX_SIZE
        return commands, at
