"""Frames out of a stream: the bytes are read to where they are looked at, and nobody copies them in between.

    buffer   | done | frames that are whole | one that is not | room: the next bytes of the stream go here |
                    '- start                                  '- end

Where the frame that is not whole would not fit behind `start`, what is there of it is moved to the front.
Invariant: whatever arrives becomes frames or one RemoteViolation, and a frame that comes out was sent like that; the
buffer has one size unless a frame is larger. Pure: bytes in, values out; one decoder per connection and direction.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.replication.frames import (
    CRC_AT,
    DATA_BYTES_MAX,
    HEAD,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    TRANSFER,
    TRANSFER_HEAD_BYTES,
    Frame,
    read_frame,
)
from remoting.native.checksum import crc32c
from remoting.protocol.errors import RemoteViolation

BUFFER_BYTES = 4 * 1024
"""Enough for what a replica says."""


class Decoder:
    """Frames out of arbitrary chunks of bytes, of the kinds that may come from that side.

    The bytes of a TRANSFER are a view of the decoder's buffer, sound until the next frame is asked for or more is fed.
    """

    def __init__(
        self, kinds: frozenset[int], data_bytes_max: int = DATA_BYTES_MAX, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        self._limits = {kind: PAYLOAD_BYTES_MAX[kind] for kind in kinds}
        if TRANSFER in kinds:
            self._limits[TRANSFER] = TRANSFER_HEAD_BYTES + data_bytes_max
        self._view = memoryview(bytearray(buffer_bytes))
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
        """Return where the next bytes of the stream go; `filled` hears how many came."""
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
