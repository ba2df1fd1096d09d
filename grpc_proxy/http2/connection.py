"""One HTTP/2 connection of a server (RFC 9113), without a socket: bytes in -> events, calls -> bytes out.

    receive(bytes) -> [(event, stream, what, is_last)]
        REQUEST  fields, or None when there are too many; whether no data follows
        DATA     bytes; whether they are the last
        RESET    the stream has ended, by the peer or for its fault
        DRAINED  what waited on the stream is sent
    widen(room) -> the same, only DRAINED
    answer, send, finish, reset, consumed, go_away -> take()

What a frame may do in each state of its stream is the table `RULES`. What a peer sends beyond a stream's or the
connection's window is a fault; a window grows when the user has consumed what came (`consumed`).
Invariants: whatever bytes come, `receive` raises nothing and memory is bounded by `Http2Limits`; after a fault of the
connection `failure` is set, GOAWAY is the last frame sent, and no more events come. A block of headers is always
decoded, also of a stream that is refused, since the table of the peer goes on. Pure; a typed module.
"""

from __future__ import annotations

from typing import Any

from grpc_proxy.http2 import frames
from grpc_proxy.http2.errors import ErrorCode, Http2Violation
from grpc_proxy.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    PADDED,
    PREFACE,
    PRIORITISED,
    WINDOW_FIRST,
    WINDOW_MAX,
    Kind,
    SettingName,
)
from grpc_proxy.http2.limits import AddressBudget, Budget, Http2Limits
from grpc_proxy.http2.outgoing import CLOSED, OPEN, PEER_ENDED, Http2Stream, SendingSide
from grpc_proxy.http2.requests import HeaderBlocks, check_request

REQUEST, DATA, RESET, DRAINED = 1, 2, 3, 4
IDLE, FORGOTTEN = 3, 4
"""States of a stream without an object: never used; reset by this side, so that frames of it may still be on their
way. Any other one that was used is CLOSED."""
GRANTED, IGNORED = "", "late"
RULES: dict[tuple[int, int], tuple[str, ErrorCode, bool]] = {
    (IDLE, Kind.DATA): ("data for a stream that was not opened", ErrorCode.PROTOCOL_ERROR, True),
    (IDLE, Kind.RST_STREAM): ("a reset of a stream that was not opened", ErrorCode.PROTOCOL_ERROR, True),
    (IDLE, Kind.WINDOW_UPDATE): ("a window of a stream that was not opened", ErrorCode.PROTOCOL_ERROR, True),
    (PEER_ENDED, Kind.DATA): ("data behind the end of a stream", ErrorCode.STREAM_CLOSED, False),
    (PEER_ENDED, Kind.HEADERS): ("headers behind the end of a stream", ErrorCode.STREAM_CLOSED, False),
    (CLOSED, Kind.DATA): ("data for a stream that has ended", ErrorCode.STREAM_CLOSED, True),
    (CLOSED, Kind.HEADERS): ("headers of a stream that has ended", ErrorCode.STREAM_CLOSED, True),
    (CLOSED, Kind.RST_STREAM): (IGNORED, ErrorCode.NO_ERROR, False),
    (CLOSED, Kind.WINDOW_UPDATE): (IGNORED, ErrorCode.NO_ERROR, False),
    (FORGOTTEN, Kind.DATA): (IGNORED, ErrorCode.NO_ERROR, False),
    (FORGOTTEN, Kind.HEADERS): (IGNORED, ErrorCode.NO_ERROR, False),
    (FORGOTTEN, Kind.RST_STREAM): (IGNORED, ErrorCode.NO_ERROR, False),
    (FORGOTTEN, Kind.WINDOW_UPDATE): (IGNORED, ErrorCode.NO_ERROR, False),
}
"""(state, kind of frame) -> (what is wrong, code, whether the connection ends); what is not here may be."""
SIZES = {Kind.PRIORITY: 5, Kind.RST_STREAM: 4, Kind.PING: 8, Kind.WINDOW_UPDATE: 4}
"""Payload of the frames that have one size."""
OF_STREAMS = (Kind.DATA, Kind.HEADERS, Kind.PRIORITY, Kind.RST_STREAM, Kind.CONTINUATION)
OF_CONNECTION = (Kind.SETTINGS, Kind.PING, Kind.GOAWAY)
_DATA, _HEADERS, _RST, _WINDOW, _CONTINUATION = (
    int(kind) for kind in (Kind.DATA, Kind.HEADERS, Kind.RST_STREAM, Kind.WINDOW_UPDATE, Kind.CONTINUATION)
)
"""The frequent kinds as plain numbers."""
_GOAWAY_REASON_BYTES_MAX = 200
Event = tuple[int, Http2Stream, Any, bool]


class Http2Connection:
    """The server's side of one connection."""

    __slots__ = (
        "_blocks", "_budget", "_events", "_forgotten", "_greeted", "_last_id", "_limits", "_out", "_rest",
        "_served_id", "_uncredited_bytes", "_window", "failure", "streams",
    )  # fmt: skip

    def __init__(self, limits: Http2Limits) -> None:
        self.streams: dict[int, Http2Stream] = {}
        """Those that are open."""
        self.failure: Http2Violation | None = None
        """What the peer did that ended the connection."""
        self._limits = limits
        self._budget = Budget(limits)
        self._blocks = HeaderBlocks(limits)
        self._out = SendingSide()
        self._events: list[Event] = []
        self._rest = b""
        self._greeted = 0
        """0: nothing came; 1: the preface did; 2: the first settings, too."""
        self._last_id = 0
        self._served_id = WINDOW_MAX
        """The last stream that is served; later ones are refused, as GOAWAY has said."""
        self._forgotten: dict[int, None] = {}
        self._uncredited_bytes = 0
        self._window = limits.connection_window_bytes
        settings: dict[int, int] = {
            SettingName.MAX_CONCURRENT_STREAMS: limits.streams_max,
            SettingName.INITIAL_WINDOW_SIZE: limits.window_bytes,
            SettingName.MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
        }
        self._out.add(frames.settings_frame(settings))
        self._out.add(frames.window_frame(0, limits.connection_window_bytes - WINDOW_FIRST))

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes of the peer; returns what they mean."""
        events = self._events = []
        if self.failure is None:
            try:
                self._read(self._rest + data if self._rest else data)
            except Http2Violation as violation:
                self._fail(violation)
        return events

    def take(self) -> bytes:
        """Return what is to be written."""
        return self._out.take()

    def widen(self, room: int) -> list[Event]:
        """Let so many bytes of data go out before the next call; what waited goes first. Without any call, all may."""
        events = self._events = []
        self._out.room = room
        self._pump()
        return events

    def answer(self, stream: Http2Stream, block: bytes, data: bytes, trailers: bytes) -> None:
        """Send a whole answer: header block, data, trailers. Nothing happens on a stream that has ended."""
        if stream.state == CLOSED:
            return
        self.begin(stream, block)
        self._out.data(stream, data)
        self.finish(stream, trailers)

    def begin(self, stream: Http2Stream, block: bytes) -> None:
        """Send the header block of an answer."""
        if stream.state != CLOSED:
            self._budget.answered()
            self._out.add(self._out.headers(stream.stream_id, block, end=False))

    def send(self, stream: Http2Stream, data: bytes) -> None:
        """Send data; `stream.pending_bytes` says how much waits for the peer, DRAINED when nothing does any more."""
        if stream.state != CLOSED:
            self._out.data(stream, data)

    def finish(self, stream: Http2Stream, trailers: bytes) -> None:
        """End a stream with a header block, behind all its data."""
        if stream.state == CLOSED:
            return
        made = self._out.headers(stream.stream_id, trailers, end=True)
        if stream.pending_bytes:
            stream.trailers = made
        else:
            self._end(stream, made)

    def reset(self, stream: Http2Stream, code: ErrorCode) -> None:
        """End a stream at once."""
        if stream.state != CLOSED:
            self._close(stream)
            self._forget(stream.stream_id)
            self._out.add(frames.reset_frame(stream.stream_id, code))

    def consumed(self, stream: Http2Stream, size: int) -> None:
        """Give data that came back to the windows of the peer, some frames' worth at a time."""
        self._credit(size)
        if stream.state == OPEN:
            stream.uncredited_bytes += size
            if 2 * stream.uncredited_bytes >= self._limits.window_bytes:
                self._out.add(frames.window_frame(stream.stream_id, stream.uncredited_bytes))
                stream.receive_window += stream.uncredited_bytes
                stream.uncredited_bytes = 0

    def go_away(self) -> None:
        """Ask the peer to open no more streams; those that it has opened are served."""
        self._served_id = min(self._served_id, self._last_id)
        self._out.add(frames.goaway_frame(self._served_id, ErrorCode.NO_ERROR))

    def share(self, address: AddressBudget) -> None:
        """Charge the budget of the peer's address too."""
        self._budget.address = address

    def refill(self) -> None:
        """Begin a period of the budget."""
        self._budget.refill()

    @property
    def is_greeted(self) -> bool:
        """Whether the peer has shown that it speaks HTTP/2."""
        return self._greeted > 1

    @property
    def pending_bytes(self) -> int:
        """Data that waits for windows of the peer, or for room."""
        return self._out.pending_bytes

    def _read(self, data: bytes) -> None:
        raw, at, end = data, 0, len(data)
        if not self._greeted:
            size = min(end, len(PREFACE))
            if data[:size] != PREFACE[:size]:
                raise Http2Violation(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 preface")
            self._rest = data
            if size < len(PREFACE):
                return
            self._greeted, at = 1, size
        while end - at >= HEAD_BYTES:
            size = raw[at] << 16 | raw[at + 1] << 8 | raw[at + 2]
            if size > FRAME_BYTES_MAX:
                raise Http2Violation(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            start = at + HEAD_BYTES
            if end - start < size:
                break
            stream_id = (raw[at + 5] & 0x7F) << 24 | raw[at + 6] << 16 | raw[at + 7] << 8 | raw[at + 8]
            try:
                self._frame(raw[at + 3], raw[at + 4], stream_id, data, start, start + size)
            except Http2Violation as violation:
                if violation.stream_id == 0:
                    raise
                self._fail_stream(violation)
            at = start + size
        self._rest = data[at:]

    def _frame(self, kind: int, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if stream_id != self._blocks.stream_id if kind == _CONTINUATION else self._blocks.stream_id:
            raise Http2Violation(ErrorCode.PROTOCOL_ERROR, "CONTINUATION is missing, or out of place")
        if self._greeted == 1:
            if kind != Kind.SETTINGS or flags & ACK:
                raise Http2Violation(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._greeted = 2
        if kind == _DATA:
            self._data(flags, stream_id, data, start, end)
        elif kind == _HEADERS:
            self._headers(flags, stream_id, data, start, end)
        elif kind == _WINDOW:
            self._window_update(stream_id, data, start, end)
        elif kind == _CONTINUATION:
            block = self._blocks.go_on(data[start:end], flags)
            if block is not None:
                self._block(stream_id, self._blocks.flags, block)
        else:
            self._other(kind, flags, stream_id, data[start:end])

    def _found(self, kind: int, stream_id: int) -> Http2Stream | None:
        """The stream of a frame, None for one that is idle or whose frames are late. Http2Violation by RULES."""
        if not stream_id & 1:
            raise Http2Violation(ErrorCode.PROTOCOL_ERROR, f"a frame for the stream {stream_id}")
        stream = self.streams.get(stream_id)
        if stream is not None:
            state = stream.state
            if state == OPEN:
                return stream
        elif stream_id > self._last_id:
            state = IDLE
        else:
            state = FORGOTTEN if stream_id in self._forgotten else CLOSED
        wrong, code, ends = RULES.get((state, kind), (GRANTED, ErrorCode.NO_ERROR, False))
        if wrong == IGNORED:
            self._budget.control()
        elif wrong:
            raise Http2Violation(code, wrong, 0 if ends else stream_id)
        return stream

    def _data(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        size = end - start
        self._window -= size
        if self._window < 0:
            raise Http2Violation(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        stream = self._found(_DATA, stream_id)
        if stream is None:
            self._credit(size)
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            self._credit(size)
            raise Http2Violation(ErrorCode.FLOW_CONTROL_ERROR, "more data than the stream's window", stream_id)
        if flags & PADDED:
            start, end = self._unpadded(data, start, end)
            if size > end - start:
                self.consumed(stream, size - (end - start))
        if start == end and not flags & END_STREAM:
            self._budget.control()
            return
        if stream.expected_bytes >= 0:
            self._expect(stream, end - start, flags & END_STREAM)
        if flags & END_STREAM:
            stream.state = PEER_ENDED
        self._events.append((DATA, stream, data[start:end], stream.state != OPEN))

    def _unpadded(self, data: bytes, start: int, end: int) -> tuple[int, int]:
        if start == end:
            raise Http2Violation(ErrorCode.FRAME_SIZE_ERROR, "padding without its length")
        padding = data[start]
        if padding >= end - start:
            raise Http2Violation(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
        return start + 1, end - padding

    def _expect(self, stream: Http2Stream, size: int, is_last: int) -> None:
        stream.expected_bytes -= size
        if stream.expected_bytes < 0 or (is_last and stream.expected_bytes > 0):
            self._credit(size)
            raise Http2Violation(ErrorCode.PROTOCOL_ERROR, "not as long as content-length says", stream.stream_id)

    def _headers(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if flags & PADDED:
            start, end = self._unpadded(data, start, end)
        if flags & PRIORITISED:
            start += 5
            if start > end:
                raise Http2Violation(ErrorCode.FRAME_SIZE_ERROR, "a priority is cut short")
        if not stream_id & 1:
            raise Http2Violation(ErrorCode.PROTOCOL_ERROR, f"headers for the stream {stream_id}")
        if flags & END_HEADERS:
            self._block(stream_id, flags, data[start:end])
        else:
            self._blocks.begin(stream_id, flags, data[start:end])

    def _block(self, stream_id: int, flags: int, block: bytes) -> None:
        """A whole header block: a request, or the trailers of one."""
        fields = self._blocks.decode(block)
        stream = self._found(_HEADERS, stream_id)
        if stream is not None:
            if not flags & END_STREAM:
                raise Http2Violation(ErrorCode.PROTOCOL_ERROR, "trailers that are not the end", stream_id)
            if stream.expected_bytes > 0:
                self._expect(stream, 0, 1)
            stream.state = PEER_ENDED
            self._events.append((DATA, stream, b"", True))
            return
        if stream_id <= self._last_id:
            return
        self._last_id = stream_id
        if len(self.streams) >= self._limits.streams_max or stream_id > self._served_id:
            raise Http2Violation(ErrorCode.REFUSED_STREAM, "streams_max is reached", stream_id)
        stream = Http2Stream(stream_id, self._out.window_first, self._limits.window_bytes)
        if flags & END_STREAM:
            stream.state = PEER_ENDED
        self.streams[stream_id] = stream
        if fields is not None:
            stream.expected_bytes = check_request(stream_id, fields)
            if flags & END_STREAM and stream.expected_bytes > 0:
                self._expect(stream, 0, 1)
        self._events.append((REQUEST, stream, fields, stream.state != OPEN))

    def _window_update(self, stream_id: int, data: bytes, start: int, end: int) -> None:
        if end - start != 4:
            raise Http2Violation(ErrorCode.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {end - start} bytes")
        size = int.from_bytes(data[start:end], "big") & WINDOW_MAX
        stream = self._found(_WINDOW, stream_id) if stream_id else None
        if stream_id and stream is None:
            return
        if size == 0:
            raise Http2Violation(ErrorCode.PROTOCOL_ERROR, "a window grows by nothing", stream_id)
        self._out.opened(stream, size)
        if self._out.pending_bytes:
            self._pump()

    def _other(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """The frames that carry no request."""
        if kind in SIZES and len(payload) != SIZES[Kind(kind)]:
            whole = kind == Kind.PRIORITY
            text = f"{Kind(kind).name} of {len(payload)} bytes"
            raise Http2Violation(ErrorCode.FRAME_SIZE_ERROR, text, stream_id if whole else 0)
        if (kind in OF_STREAMS and not stream_id) or (kind in OF_CONNECTION and stream_id):
            raise Http2Violation(ErrorCode.PROTOCOL_ERROR, f"{Kind(kind).name} for the stream {stream_id}")
        if kind == Kind.PUSH_PROMISE:
            raise Http2Violation(ErrorCode.PROTOCOL_ERROR, "a client pushes nothing")
        if kind == Kind.RST_STREAM:
            self._reset_by_peer(stream_id)
            return
        self._budget.control()
        if kind == Kind.SETTINGS:
            self._settings(flags, payload)
        elif kind == Kind.PING and not flags & ACK:
            self._out.add(frames.pong_frame(payload))

    def _reset_by_peer(self, stream_id: int) -> None:
        stream = self._found(_RST, stream_id)
        if stream is not None:
            self._close(stream)
            self._events.append((RESET, stream, None, True))
            self._budget.reset()

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            if payload:
                raise Http2Violation(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of settings with a payload")
            return
        if len(payload) % 6:
            raise Http2Violation(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        for at in range(0, len(payload), 6):
            name, value = int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big")
            self._set(name, value)
        self._out.add(frames.SETTINGS_ACK)

    def _set(self, name: int, value: int) -> None:
        """Apply one setting of the peer; a value that RFC 9113, section 6.5.2, forbids ends the connection."""
        out = self._out
        if name == SettingName.HEADER_TABLE_SIZE:
            out.needs_table_update = True
        elif name == SettingName.ENABLE_PUSH and value > 1:
            raise Http2Violation(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        elif name == SettingName.MAX_FRAME_SIZE:
            if not FRAME_BYTES_MAX <= value < 2**24:
                raise Http2Violation(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
            out.frame_bytes_max = min(value, 4 * FRAME_BYTES_MAX)
        elif name == SettingName.INITIAL_WINDOW_SIZE:
            if value > WINDOW_MAX:
                raise Http2Violation(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}")
            change, out.window_first = value - out.window_first, value
            for stream in self.streams.values():
                if stream.send_window + change > WINDOW_MAX:
                    raise Http2Violation(ErrorCode.FLOW_CONTROL_ERROR, "a window is larger than 2^31-1")
                stream.send_window += change
            self._pump()

    def _credit(self, size: int) -> None:
        """Give bytes back to the connection's window."""
        self._uncredited_bytes += size
        if 2 * self._uncredited_bytes >= self._limits.connection_window_bytes:
            self._out.add(frames.window_frame(0, self._uncredited_bytes))
            self._window += self._uncredited_bytes
            self._uncredited_bytes = 0

    def _pump(self) -> None:
        for stream in self._out.pump():
            if stream.trailers is not None:
                self._end(stream, stream.trailers)
            else:
                self._events.append((DRAINED, stream, None, False))

    def _end(self, stream: Http2Stream, trailers: bytes) -> None:
        """Send the last frames of a stream. A peer that has not ended its part is told that it need not."""
        self._out.add(trailers)
        is_open = stream.state == OPEN
        self._close(stream)
        if is_open:
            self._forget(stream.stream_id)
            self._out.add(frames.reset_frame(stream.stream_id, ErrorCode.NO_ERROR))

    def _close(self, stream: Http2Stream) -> None:
        stream.state = CLOSED
        self.streams.pop(stream.stream_id, None)
        if stream.pending_bytes:
            self._out.drop(stream)

    def _forget(self, stream_id: int) -> None:
        """Keep in mind, for a while, that late frames of a stream are to be ignored."""
        self._forgotten[stream_id] = None
        if len(self._forgotten) > 2 * self._limits.streams_max:
            del self._forgotten[next(iter(self._forgotten))]

    def _fail_stream(self, violation: Http2Violation) -> None:
        stream = self.streams.get(violation.stream_id)
        if stream is not None:
            self._close(stream)
            self._events.append((RESET, stream, violation, True))
        self._forget(violation.stream_id)
        self._out.add(frames.reset_frame(violation.stream_id, violation.code))
        self._budget.reset()

    def _fail(self, violation: Http2Violation) -> None:
        """The connection ends; streams end with it."""
        self.failure = violation
        reason = violation.reason.encode("ascii", "replace")[:_GOAWAY_REASON_BYTES_MAX]
        self._out.add(frames.goaway_frame(self._last_id, violation.code, reason))
        self._rest = b""
