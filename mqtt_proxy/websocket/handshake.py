"""The opening of a WebSocket: one HTTP request, answered with 101 or refused with a status, by the `Rules` of
its listener.

Invariants: at most `REQUEST_BYTES_MAX` are kept; nothing a peer sends raises; the answer to a refusal is fixed text and
repeats nothing of the request. No extension is agreed on. HTTP itself is read by h11, below wsproto. Pure.
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
"""What MQTT calls itself there [MQTT-6.0.0-3]; the second is what 3.1 used and clients still offer."""

ANY_ORIGIN = "*"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one listener."""

    path: str = "/mqtt"
    origins: tuple[str, ...] = ()
    """Pages that may connect beside those of this address; `*`: all. Who sends no Origin is no browser."""

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
    """How a handshake ended."""

    response: bytes
    """What to send; when it is a refusal, the socket is closed behind it."""
    refusal: str = ""
    """Why, in our words; empty when the WebSocket is open."""
    rest: bytes = b""
    """What came behind the request: the first frames."""


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
        except (LocalProtocolError, ValueError) as error:  # names and hosts that are no text
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
