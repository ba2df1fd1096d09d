"""The listening socket of the proxy: takes connections within the limits, ends overdue ones, closes all at the end.

Invariants: a connection over a limit is cut before a handler exists and is counted with its reason; after `stop` no
connection of this listener is open. TLS: pass an `ssl.SSLContext`; everything else stays the same.
Loop rule: one listener per loop; `start` and `stop` on that loop.
"""

from __future__ import annotations

import asyncio
import ssl
import uuid
from typing import Any

from mqtt_proxy.front.connection import CLOSE_GRACE_S, Connection, HandlerFactory
from mqtt_proxy.front.counters import FrontCounters
from mqtt_proxy.front.loop_state import LoopState
from mqtt_proxy.front.quotas import Opening, Quotas
from mqtt_proxy.mqtt.keepalive import SLOT_MS
from mqtt_proxy.mqtt.limits import SessionLimits
from mqtt_proxy.mqtt.session import Session
from mqtt_proxy.mqtt.topic_names import TopicNames
from runtime.clock import Clock
from runtime.logs import get_logger

BACKLOG = 1_024
"""Connections the kernel keeps until they are taken: a fleet coming back after an outage."""


def random_client_id() -> str:
    """An id for a client that sends none; not to be guessed, so that nobody can take the session over."""
    return f"auto-{uuid.uuid4().hex}"


class Listener:
    """Accepts MQTT over TCP or TLS."""

    def __init__(
        self,
        make_handler: HandlerFactory,
        *,
        clock: Clock,
        limits: SessionLimits,
        counters: FrontCounters,
        quotas: Quotas,
        connections_max: int = 20_000,
        connections_per_address_max: int | None = None,
        output_bytes_max: int = 262_144,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`output_bytes_max`: bytes waiting in one socket above which its deliveries stop."""
        self._make_handler = make_handler
        self._clock = clock
        self._limits = limits
        self._names = TopicNames(limits)
        self._counters = counters
        self._quotas = quotas
        self._connections_max = connections_max
        self._per_address_max = connections_max if connections_per_address_max is None else connections_per_address_max
        self._output_bytes_max = output_bytes_max
        self._tls = tls
        self._log = get_logger("mqtt_proxy.front")
        self._server: asyncio.Server | None = None
        self._shared: LoopState | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._per_address: dict[str, int] = {}
        self._all_closed = asyncio.Event()
        self.connections: set[Connection] = set()
        """Open connections, admitted ones only."""

    async def start(self, host: str, port: int) -> int:
        """Listen; the port taken (0 = any free one). OSError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._shared = LoopState(loop, self._clock)
        tls: dict[str, Any] = {}
        if self._tls is not None:
            deadline_s = self._limits.connect_deadline_ms / 1_000
            tls = {"ssl": self._tls, "ssl_handshake_timeout": deadline_s, "ssl_shutdown_timeout": CLOSE_GRACE_S}
        self._server = await loop.create_server(self._connection, host, port, backlog=BACKLOG, **tls)
        self._timer = loop.call_later(SLOT_MS / 1_000, self._expire)
        taken: int = self._server.sockets[0].getsockname()[1]
        return taken

    async def stop(self, deadline_s: float = 5.0) -> None:
        """Take no more connections and close those there are; what is not gone by the deadline is cut."""
        if self._server is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._server.close()
        self._server = None
        for connection in list(self.connections):
            connection.close("server_stopping")
        self._all_closed.clear()
        if self.connections:
            try:
                await asyncio.wait_for(self._all_closed.wait(), deadline_s)
            except TimeoutError:
                self._log.warning("mqtt_stop_deadline", connections=len(self.connections))
                for connection in list(self.connections):
                    connection.abort()
        await asyncio.sleep(0)  # the handlers' on_closed run in the turn after the last socket went

    def _connection(self) -> Connection:
        assert self._shared is not None
        session = Session(
            self._limits,
            assigned_client_id=random_client_id,
            names=self._names,
            opened_ms=self._shared.now_ms(),
        )
        return Connection(
            session,
            self._shared,
            make_handler=self._make_handler,
            admit=self._admit,
            release=self._release,
            counters=self._counters,
            output_bytes_max=self._output_bytes_max,
        )

    def _admit(self, connection: Connection) -> str | None:
        """Count the connection in, or say which limit it is over."""
        address = connection.peer_address
        of_address = self._per_address.get(address, 0)
        reason = None
        if self._server is None:
            reason = "server_stopping"
        elif len(self.connections) >= self._connections_max:
            reason = "connections_max"
        elif of_address >= self._per_address_max:
            reason = "connections_per_address_max"
        else:
            reason = self._judge_rate(connection)
        if reason is not None:
            self._counters.refused.child(reason).value += 1
            self._log.warning("mqtt_connection_refused", reason=reason, peer=address)
            return reason
        self.connections.add(connection)
        self._per_address[address] = of_address + 1
        self._counters.opened.value += 1
        self._counters.connections.value = len(self.connections)
        return None

    def _judge_rate(self, connection: Connection) -> str | None:
        """Charge the address's connect rate; who is above it is told so at CONNECT, who is far above it is cut."""
        assert self._shared is not None
        opening = self._quotas.opening(connection.peer_address, self._shared.now_ms())
        connection.over_connect_rate = opening is Opening.OVER_RATE
        return "connect_rate" if opening is Opening.CUT else None

    def _release(self, connection: Connection) -> None:
        """Count the connection out."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        left = self._per_address[connection.peer_address] - 1
        if left:
            self._per_address[connection.peer_address] = left
        else:
            del self._per_address[connection.peer_address]
        self._counters.connections.value = len(self.connections)
        if not self.connections:
            self._all_closed.set()

    def _expire(self) -> None:
        """Every half second: end the connections that are overdue."""
        assert self._shared is not None
        for connection in self._shared.ring.expire(self._shared.now_ms()):
            connection.expire()
        self._timer = self._shared.loop.call_later(SLOT_MS / 1_000, self._expire)
