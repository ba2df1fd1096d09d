"""One client's connection: a socket, HTTP/2 on it, and the calls on that.

What the calls of a turn answer leaves in one write. While the socket takes no more, data waits in its calls, and they
wait for it. A client that takes nothing is ended after a while (`stall_ms_max`), so is one that sends no HTTP/2 in
time, and one that has had no call for long (`idle_ms_max`).
Invariant: what waits in the socket's buffer is bounded by `output_bytes_max`. Data alone never reaches it: only a
client does that asks for more and more answers that are headers, and takes none; it is cut off. Every end by the proxy
is counted by its reason. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from grpc_proxy.http2.connection import DATA, DRAINED, REQUEST, Http2Connection
from grpc_proxy.http2.errors import ErrorCode
from grpc_proxy.http2.grpc_form import CallFault, StatusCode
from grpc_proxy.http2.limits import AddressBudget, Http2Limits
from grpc_proxy.listening.call import Call, CallRules, ClientLeft
from remoting.transport.origins import origin_of
from runtime.logs import get_logger

CLOSE_S = 5.0
"""How long a connection that is closed may take for its last output."""
DEADLINE_GRACE_S = 1.0
"""How long after its deadline a call is ended whose client has not done so."""
WRITE_BYTES_MAX, BUFFERED_BYTES_MAX = 1_048_576, 65_536
"""Most data of one write, and how much of it a socket leaves before calls wait for it; at most half and an eighth of
`output_bytes_max`."""
LOG = get_logger("grpc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Bounds of a connection beside those of HTTP/2."""

    output_bytes_max: int
    handshake_s_max: float
    idle_s_max: float
    stall_s_max: float


class ConnectionUser:
    """What all connections of one listener share."""

    def __init__(self, rules: CallRules, http: Http2Limits, limits: ConnectionLimits, ended: Any) -> None:
        """`ended(reason)` counts an end by the proxy."""
        self.rules = rules
        self.http = http
        self.limits = limits
        self.ended = ended
        self.connections: set[GrpcConnection] = set()
        self._addresses: dict[str, AddressBudget] = {}

    def enter(self, host: str) -> AddressBudget:
        """Count a connection of an address; returns the address's budget, in which it is counted."""
        origin = origin_of(host)
        budget = self._addresses.get(origin)
        if budget is None:
            budget = self._addresses[origin] = AddressBudget(self.http)
        budget.connections += 1
        return budget

    def refill(self) -> None:
        """Begin a period of the budgets; those of addresses without a connection end with the last one."""
        self._addresses = {host: budget for host, budget in self._addresses.items() if budget.connections}
        for budget in self._addresses.values():
            budget.refill()


class GrpcConnection(asyncio.Protocol):
    """The protocol of one socket, and the host of its calls."""

    def __init__(self, shared: ConnectionUser, host: str, opened_s: float) -> None:
        self.host = host
        self.rules = shared.rules
        self.http = Http2Connection(shared.http)
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._address: AddressBudget | None = None
        self._room = min(WRITE_BYTES_MAX, shared.limits.output_bytes_max // 2)
        self._is_due = False
        self._resumed: asyncio.Future[None] | None = None
        self._since_s = opened_s
        """Since when it has no call; since its start while it has not shown that it speaks HTTP/2."""
        self._stalled_s: float | None = None
        self._stalled_at = (0, 0)
        self._is_ending = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected, and through its TLS handshake."""
        self._transport = cast("asyncio.Transport", transport)
        self._shared.connections.add(self)
        self._address = self._shared.enter(self.host)
        self.http.share(self._address)
        output_max = self._shared.limits.output_bytes_max
        self._transport.set_write_buffer_limits(high=min(BUFFERED_BYTES_MAX, output_max // 8))
        self.http.widen(self._room)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Pass bytes to HTTP/2, and what they mean to the calls."""
        http = self.http
        for event, stream, what, is_last in http.receive(data):
            if event == REQUEST:
                call = stream.user = Call(self, stream, self._loop)
                call.begin(what, is_last=is_last)
            elif event == DATA:
                stream.user.data(what, is_last=is_last)
            elif event == DRAINED:
                stream.user.drained()
            elif stream.user is not None:
                stream.user.left()
        if http.failure is not None and not self._is_ending:
            LOG.info("grpc_connection_ended", peer=self.host, reason=http.failure.reason, code=http.failure.code.name)
            self.end(http.failure.code.name.lower())
        else:
            self._flush()

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        self._resumed = self._loop.create_future()

    def resume_writing(self) -> None:
        """The socket takes more."""
        self._resume()
        self._widen()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Cancel the handlers of all calls: nobody gets their answers."""
        self._shared.connections.discard(self)
        if self._address is not None:
            self._address.connections -= 1
        self._transport, self._is_ending = None, True
        self._resume()
        self._leave()

    # Used by calls.

    def touched(self) -> None:
        """Write at the end of this turn what there is."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush)

    async def writable(self) -> None:
        """Return when the socket takes more. Raises ClientLeft when it has closed."""
        if self._resumed is not None:
            await asyncio.shield(self._resumed)
        if self._transport is None:
            raise ClientLeft

    # Used by the listener.

    def end(self, reason: str) -> None:
        """Close after the last output; the reason is counted."""
        if self._is_ending:
            return
        self._is_ending = True
        self._shared.ended(reason)
        self._leave()
        self._flush()
        if self._transport is not None:
            self._transport.close()
            self._loop.call_later(CLOSE_S, self._abort)

    def go_away(self) -> None:
        """Have the client open no more calls here."""
        self.http.go_away()
        self._flush()

    def excuse(self, late_s: float) -> None:
        """This side was late by so much: the client is not charged for it."""
        self._since_s += late_s
        if self._stalled_s is not None:
            self._stalled_s += late_s

    def sweep(self, now_s: float, *, refill: bool) -> None:
        """End what has taken too long."""
        http, limits = self.http, self._shared.limits
        if refill:
            http.refill()
        if http.streams:
            self._since_s = now_s
            for stream in list(http.streams.values()):
                call = stream.user
                if call is not None and call.deadline_s is not None and now_s > call.deadline_s + DEADLINE_GRACE_S:
                    call.fail(CallFault(StatusCode.DEADLINE_EXCEEDED, "deadline", "the deadline has passed"))
        elif now_s - self._since_s > (limits.idle_s_max if http.is_greeted else limits.handshake_s_max):
            if http.is_greeted:
                http.go_away()
            self.end("idle" if http.is_greeted else "handshake")
            return
        if self._resumed is not None or http.pending_bytes:
            self._watch(now_s)
        else:
            self._stalled_s = None

    def _watch(self, now_s: float) -> None:
        """Cut off a client that has taken nothing for too long."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        found = waiting, self.http.pending_bytes
        if self._stalled_s is None or found != self._stalled_at:
            self._stalled_s, self._stalled_at = now_s, found
        elif now_s - self._stalled_s > self._shared.limits.stall_s_max:
            self._cut("slow_reader")

    def _flush(self) -> None:
        self._is_due = False
        data, transport = self.http.take(), self._transport
        if not data or transport is None:
            return
        while data:
            transport.write(data)
            if self._resumed is None:
                self._widen()
            data = self.http.take()
        if self._resumed is not None and transport.get_write_buffer_size() > self._shared.limits.output_bytes_max:
            self._cut("output_bytes_max")

    def _resume(self) -> None:
        if self._resumed is not None and not self._resumed.done():
            self._resumed.set_result(None)
        self._resumed = None

    def _widen(self) -> None:
        """Let a write's worth of data out; what is sent by that is told to its calls."""
        for _event, stream, _what, _is_last in self.http.widen(self._room):
            stream.user.drained()

    def _cut(self, reason: str) -> None:
        LOG.warning("grpc_connection_cut", peer=self.host, reason=reason)
        if not self._is_ending:
            self._is_ending = True
            self._shared.ended(reason)
        self._leave()
        self._abort()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        """Reset every stream, and cancel its handler."""
        for stream in list(self.http.streams.values()):
            self.http.reset(stream, ErrorCode.CANCEL)
            if stream.user is not None:
                stream.user.left()
