"""WebSocket without a socket: the opening handshake, and frames of a server. RFC 6455.

The opening is one HTTP request, answered with 101 or refused with a status, by the `Rules` of its listener. HTTP itself
is read by h11, below wsproto. The frame layer is our own because it costs a fifth of wsproto's CPU.

    byte 0: FIN, three reserved bits, opcode | byte 1: MASK, length (126: two more bytes, 127: eight) | mask | payload

Invariants: no input of a peer raises an exception: it becomes a refusal with fixed text that repeats nothing of the
request, or `close_code`, after which nothing is read. Of a handshake at most `REQUEST_BYTES_MAX` are kept, of a data
frame only its header. Cutting the input differently gives the same result. No extension is agreed on. Pure.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from wsproto.connection import ConnectionType
from wsproto.events import AcceptConnection, RejectConnection, Request
from wsproto.handshake import H11Handshake
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from remoting.protocol.web_host import is_safe_host, is_same_origin

SUBPROTOCOLS = ("mqtt", "mqttv3.1")
"""The subprotocol names of MQTT [MQTT-6.0.0-3]; the second is MQTT 3.1's, which clients still offer."""

ANY_ORIGIN = "*"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one listener."""

    path: str = "/mqtt"
    origins: tuple[str, ...] = ()
    """Pages that may connect beside those of this address; `*`: all. A client that sends no Origin is no browser."""

    def origin_allowed(self, origin: str | None, host: str = "") -> bool:
        """Whether a page of this origin may connect that asked this host."""
        if origin is None or ANY_ORIGIN in self.origins:
            return True
        if origin.lower().rstrip("/") in (each.lower().rstrip("/") for each in self.origins):
            return True
        return is_safe_host(host) and is_same_origin(origin, host)


REQUEST_BYTES_MAX = 8_192
"""Longest request with its headers; cookies of a browser fit."""

_END = b"\r\n\r\n"
_REASONS = {
    400: b"Bad Request",
    403: b"Forbidden",
    404: b"Not Found",
    426: b"Upgrade Required",
    431: b"Request Header Fields Too Large",
}


@dataclass(slots=True, frozen=True)
class HandshakeOutcome:
    """What a handshake ended in: bytes to send, and the first frames or the reason of a refusal."""

    response: bytes
    """Bytes to send; after a refusal, the socket is closed."""
    refusal: str = ""
    """The reason in our words; empty when the WebSocket is open."""
    rest: bytes = b""
    """Bytes after the request: the first frames."""


class Handshake:
    """One request of one client."""

    __slots__ = ("_http", "_received", "_rules")

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._received = b""
        self._http = H11Handshake(ConnectionType.SERVER)

    def feed(self, data: bytes) -> HandshakeOutcome | None:
        """Take bytes; the outcome once there is one."""
        before = len(self._received)
        self._received += data
        found = self._received.find(_END, max(0, before - len(_END)))
        end = found + len(_END) if found >= 0 else len(self._received)
        if end > REQUEST_BYTES_MAX:
            return _refuse(431, f"a request of more than {REQUEST_BYTES_MAX} bytes")
        try:
            self._http.receive_data(self._received[before:end])
            requests = [event for event in self._http.events() if isinstance(event, Request)]
            if requests:
                return self._answer(requests[0], self._received[end:])
        except RemoteProtocolError as error:
            hint = error.event_hint
            status = hint.status_code if isinstance(hint, RejectConnection) else 400
            return _refuse(status if status in _REASONS else 400, str(error))
        except (LocalProtocolError, ValueError) as error:  # names and hosts that are not text
            return _refuse(400, type(error).__name__)
        return None if found < 0 else _refuse(400, "no request for a WebSocket")

    def _answer(self, request: Request, rest: bytes) -> HandshakeOutcome:
        headers = dict(request.extra_headers)
        if request.target.partition("?")[0] != self._rules.path:
            return _refuse(404, "another path")
        origin = headers.get(b"origin")
        if not self._rules.origin_allowed(None if origin is None else origin.decode("latin-1"), request.host):
            return _refuse(403, "another origin")
        if not _is_key(headers.get(b"sec-websocket-key", b"")):
            return _refuse(400, "a key that is none")
        chosen = next((each for each in request.subprotocols if each in SUBPROTOCOLS), None)
        if chosen is None:
            return _refuse(400, "no subprotocol mqtt [MQTT-6.0.0-3]")
        return HandshakeOutcome(self._http.send(AcceptConnection(subprotocol=chosen)), rest=rest)


def _is_key(value: bytes) -> bool:
    """Sixteen bytes in base64."""
    try:
        return len(base64.b64decode(value.strip(), validate=True)) == 16
    except binascii.Error:
        return False


def _refuse(status: int, reason: str) -> HandshakeOutcome:
    further = b"Sec-WebSocket-Version: 13\r\n" if status == 426 else b""
    text = b"This is MQTT over WebSocket.\n"
    response = b"HTTP/1.1 %d %s\r\n%sContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
    return HandshakeOutcome(
        response % (status, _REASONS[status], further, len(text), text), refusal=f"{status}: {reason}"
    )


CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
CONTROL_BYTES_MAX = 125

NORMAL, GOING_AWAY, PROTOCOL_ERROR, UNSUPPORTED, BAD_TEXT, POLICY, TOO_BIG = 1000, 1001, 1002, 1003, 1007, 1008, 1009
"""Close codes we send."""

_CODES_OF_PEERS = frozenset((1000, 1001, 1002, 1003, *range(1007, 1015)))
_LENGTH_BYTES = {126: 2, 127: 8}


class FrameReader:
    """The receiving side of one WebSocket."""

    __slots__ = ("_control", "_fragmented", "_head", "_left", "_mask", "_opcode", "close_code", "frame_size_bytes_max",
                 "peer_closed", "ping")  # fmt: skip

    def __init__(self, frame_size_bytes_max: int | None = None) -> None:
        self.frame_size_bytes_max = frame_size_bytes_max
        """Longest data frame that may begin now; None: any."""
        self.ping: bytes | None = None
        """The last ping not yet answered; the caller that answers it clears it."""
        self.close_code: int | None = None
        """The connection has to be closed with this code: the peer's own, or that of its error."""
        self.peer_closed = False
        """Whether the peer closed the connection properly."""
        self._head = b""
        self._left = 0
        self._mask = b""
        self._opcode = 0
        self._fragmented = False
        self._control = b""

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the socket; returns the application's bytes in them."""
        if self._head:
            data = self._head + data
            self._head = b""
        taken: list[bytes] = []
        position, end = 0, len(data)
        while position < end and self.close_code is None:
            if not self._left:
                begin = self._begin(data, position, end)
                if begin < 0:
                    self._head = data[position:]
                    break
                position = begin
            position = self._take(data, position, end, taken)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def _take(self, data: bytes, position: int, end: int, taken: list[bytes]) -> int:
        """Take the payload that is there; returns the position behind it."""
        size = min(self._left, end - position)
        if size:
            chunk = _unmask(data[position : position + size], self._mask)
            self._left -= size
            if self._left:
                turn = size % 4
                self._mask = self._mask[turn:] + self._mask[:turn]
            if self._opcode < CLOSE:
                taken.append(chunk)
            else:
                self._control += chunk
        if not self._left and self._opcode >= CLOSE and self.close_code is None:
            self._end_control()
        return position + size

    def _begin(self, data: bytes, position: int, end: int) -> int:
        """Read a frame's header; returns the position of its payload, -1 when the header is not complete."""
        if end - position < 2:
            return -1
        first, second = data[position], data[position + 1]
        length = second & 0x7F
        self._judge(first, second, length)
        if self.close_code is not None:
            return end
        width = _LENGTH_BYTES.get(length, 0)
        payload = position + 2 + width + 4
        if payload > end:
            return -1
        if width:
            length = int.from_bytes(data[position + 2 : position + 2 + width], "big")
            if length < (126 if width == 2 else 65_536) or length >> 63:
                self.close_code = PROTOCOL_ERROR  # not the shortest form, or the bit that must be 0
                return end
        self._opcode = first & 0xF
        if self._opcode < CLOSE:
            if self.frame_size_bytes_max is not None and length > self.frame_size_bytes_max:
                self.close_code = TOO_BIG
                return end
            self._fragmented = not first & 0x80
        self._mask = data[payload - 4 : payload]
        self._left = length
        return payload

    def _judge(self, first: int, second: int, length: int) -> None:
        """Set `close_code` when a header's first two bytes break a rule."""
        opcode = first & 0xF
        if first & 0x70 or not second & 0x80:
            self.close_code = PROTOCOL_ERROR  # reserved bits without an extension; a client that does not mask
        elif opcode >= CLOSE:
            if opcode > PONG or not first & 0x80 or length > CONTROL_BYTES_MAX:
                self.close_code = PROTOCOL_ERROR
        elif opcode > BINARY or (opcode == CONTINUATION) != self._fragmented:
            self.close_code = PROTOCOL_ERROR
        elif opcode == TEXT:
            self.close_code = UNSUPPORTED  # MQTT is sent in binary frames only [MQTT-6.0.0-1]

    def _end_control(self) -> None:
        payload, self._control = self._control, b""
        if self._opcode == PING:
            self.ping = payload
        elif self._opcode == CLOSE:
            self.close_code = _judge_close(payload)
            self.peer_closed = self.close_code not in (PROTOCOL_ERROR, BAD_TEXT)
        self._opcode = BINARY  # handled: an empty payload must not be handled again


def _judge_close(payload: bytes) -> int:
    """The code that answers a close frame."""
    if not payload:
        return NORMAL
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or not (code in _CODES_OF_PEERS or 3000 <= code <= 4999):
        return PROTOCOL_ERROR
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        return BAD_TEXT
    return code


def _unmask(data: bytes, mask: bytes) -> bytes:
    """Masking again undoes masking. One large integer is the fastest way without compiled code."""
    size = len(data)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(repeated, "little")).to_bytes(size, "little")


def data_frame(payload: bytes) -> bytes:
    """One binary frame."""
    return _frame(BINARY, payload)


def pong_frame(payload: bytes) -> bytes:
    """The answer to a ping."""
    return _frame(PONG, payload)


def close_frame(code: int) -> bytes:
    """The close frame, the last of a WebSocket."""
    return _frame(CLOSE, code.to_bytes(2, "big"))


def _frame(opcode: int, payload: bytes) -> bytes:
    size = len(payload)
    if size < 126:
        return bytes((0x80 | opcode, size)) + payload
    if size < 65_536:
        return bytes((0x80 | opcode, 126)) + size.to_bytes(2, "big") + payload
    return bytes((0x80 | opcode, 127)) + size.to_bytes(8, "big") + payload
