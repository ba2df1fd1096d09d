"""The sending side of a connection: streams, the peer's windows, and what waits for them.

A stream's data goes out as far as both windows and the room of the socket allow, the rest waits here, and its trailers
behind it. When there is room again, the streams that wait get a frame each in turn, so a large answer delays no small
one. Invariant: no byte of data beyond a window of the peer, or the room, is sent, and data of a stream keeps its order.
Pure; a typed module.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from grpc_proxy.http2.errors import ErrorCode, Http2Violation
from grpc_proxy.http2.frames import FRAME_BYTES_MAX, WINDOW_FIRST, WINDOW_MAX, Kind, head, headers_frames

OPEN, PEER_ENDED, CLOSED = 0, 1, 2
"""States of a stream (RFC 9113, section 5.1): open; half-closed by the peer; closed. An idle one has no object."""


class Http2Stream:
    """One stream of a connection."""

    __slots__ = (
        "expected_bytes", "pending", "pending_bytes", "receive_window", "send_window", "state", "stream_id", "trailers",
        "uncredited_bytes", "user",
    )  # fmt: skip

    def __init__(self, stream_id: int, send_window: int, receive_window: int) -> None:
        self.stream_id = stream_id
        self.state = OPEN
        self.send_window = send_window
        self.receive_window = receive_window
        self.uncredited_bytes = 0
        """Received and consumed, but not yet given back to the peer's window."""
        self.expected_bytes = -1
        """What `content-length` says is still to come; -1: nothing."""
        self.pending: deque[bytes] = deque()
        self.pending_bytes = 0
        """Data that waits for the peer's windows, or for room."""
        self.trailers: bytes | None = None
        """The frames behind the data; None: not ended yet."""
        self.user: Any = None
        """Whatever the connection's user keeps with a stream."""


class SendingSide:
    """What is sent on one connection."""

    __slots__ = ("_parts", "_waiting", "frame_bytes_max", "needs_table_update", "room", "window", "window_first")

    def __init__(self) -> None:
        self.window = WINDOW_FIRST
        """The connection's."""
        self.window_first = WINDOW_FIRST
        """That of a new stream."""
        self.room = WINDOW_MAX
        """Bytes of data that the socket takes before more room is given."""
        self.frame_bytes_max = FRAME_BYTES_MAX
        self.needs_table_update = False
        """The peer has made its header table smaller; the next block has to say that it uses none."""
        self._parts: list[bytes] = []
        self._waiting: dict[int, Http2Stream] = {}

    def add(self, frames: bytes) -> None:
        """Send frames that no window holds back."""
        self._parts.append(frames)

    def take(self) -> bytes:
        """Return all that is to be written now."""
        parts = self._parts
        if not parts:
            return b""
        self._parts = []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def headers(self, stream_id: int, block: bytes, *, end: bool) -> bytes:
        """Return a header block in frames."""
        if self.needs_table_update:
            self.needs_table_update = False
            block = b"\x20" + block
        return headers_frames(stream_id, block, end=end, size_max=self.frame_bytes_max)

    def data(self, stream: Http2Stream, data: bytes) -> None:
        """Send data, as far as the windows allow now."""
        size = len(data)
        if not stream.pending and size <= min(stream.send_window, self.window, self.room, self.frame_bytes_max):
            stream.send_window -= size
            self.window -= size
            self.room -= size
            self._parts.append(head(Kind.DATA, 0, stream.stream_id, size))
            self._parts.append(data)
            return
        for at in range(0, size, FRAME_BYTES_MAX):
            stream.pending.append(data[at : at + FRAME_BYTES_MAX])
        stream.pending_bytes += size
        while size > 0 and stream.pending_bytes:
            size = min(stream.send_window, self.window, self.room, self.frame_bytes_max, stream.pending_bytes)
            if size > 0:
                self._send(stream, size)
        if stream.pending_bytes:
            self._waiting[stream.stream_id] = stream

    def pump(self) -> list[Http2Stream]:
        """Send what waits, a frame of each stream in turn; returns the streams that have nothing left to send."""
        done: list[Http2Stream] = []
        sent = True
        while sent and self.window > 0 and self.room > 0 and self._waiting:
            sent = False
            for stream in list(self._waiting.values()):
                size = min(stream.send_window, self.window, self.room, self.frame_bytes_max, stream.pending_bytes)
                if size > 0:
                    self._send(stream, size)
                    sent = True
                if not stream.pending_bytes:
                    del self._waiting[stream.stream_id]
                    done.append(stream)
        return done

    def drop(self, stream: Http2Stream) -> None:
        """Forget what waits on a stream that has ended."""
        stream.pending.clear()
        stream.pending_bytes = 0
        self._waiting.pop(stream.stream_id, None)

    @property
    def pending_bytes(self) -> int:
        """Data of all streams that waits for windows of the peer, or for room."""
        return sum(stream.pending_bytes for stream in self._waiting.values())

    def opened(self, stream: Http2Stream | None, size: int) -> None:
        """Note that the peer takes more, on a stream or on the connection. Http2Violation(FLOW_CONTROL_ERROR)."""
        window = (self.window if stream is None else stream.send_window) + size
        if window > WINDOW_MAX:
            stream_id = 0 if stream is None else stream.stream_id
            raise Http2Violation(ErrorCode.FLOW_CONTROL_ERROR, "a window is larger than 2^31-1", stream_id)
        if stream is None:
            self.window = window
        else:
            stream.send_window = window

    def _send(self, stream: Http2Stream, size: int) -> None:
        """Send so many of the bytes that wait."""
        stream.send_window -= size
        self.window -= size
        self.room -= size
        stream.pending_bytes -= size
        self._parts.append(head(Kind.DATA, 0, stream.stream_id, size))
        while size:
            first = stream.pending.popleft()
            if len(first) > size:
                stream.pending.appendleft(first[size:])
                first = first[:size]
            self._parts.append(first)
            size -= len(first)
