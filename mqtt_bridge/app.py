"""Composition root of the bridge: our broker's line, and two ways for each configured connection.

Ready means that every way is up. Inside `lightmq up` a peer that is away does not make the installation unready: what
is published is kept in the log, and devices are served; the reason is on /readyz all the same.
Loop rule: made and used on one event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mqtt_bridge.config import IN, OUT, BridgeConfig, ConnectionConfig
from mqtt_bridge.direction import Direction
from mqtt_bridge.metrics import BridgeMetrics
from mqtt_bridge.receiver import PeerReceiver
from mqtt_bridge.sender import Sender
from remoting.client.connection import signing_dial
from remoting.client.tls import ClientTls
from remoting.client.uplink import Uplink
from remoting.transport.contracts import Connection
from runtime.clock import Clock
from runtime.logs import get_logger
from runtime.metrics import Registry


class BridgeApp:
    """All bridges of one installation; `connection` leads to a broker in this process."""

    def __init__(
        self, config: BridgeConfig, *, clock: Clock, registry: Registry, connection: Connection | None = None
    ) -> None:
        self._config = config
        self._uplink = Uplink.configured(
            signing_dial(config.access_key_file, ClientTls.of(config.dial_tls)),
            config.broker, config.controllers, config.broker_name, present=connection,
        )  # fmt: skip
        self._clock = clock
        self._metrics = BridgeMetrics(registry)
        self._ways: list[Direction] = []
        self._log = get_logger("bridge")

    @property
    def ready(self) -> bool:
        """Whether every peer is there."""
        return self._uplink.line.up and all(way.up for way in self._ways)

    def reason(self) -> str:
        """Which peers are away and why; empty when none is."""
        if self._ways and not self._uplink.line.up:
            return "our broker cannot be reached"
        return "; ".join(f"{way.name} ({way.direction}): {way.reason}" for way in self._ways if not way.up)

    def status(self) -> dict[str, Any]:
        """The ways and whether they are up."""
        return {"ways": [{"connection": way.name, "direction": way.direction, "up": way.up, "reason": way.reason}
                         for way in self._ways]}  # fmt: skip

    async def start(self) -> None:
        """Begin to connect; waits for nothing, because our broker and the peers may come later."""
        if not self._config.connections:
            return
        self._uplink.start()
        for connection in self._config.connections:
            self._ways += self._make(connection)
        for way in self._ways:
            way.start()
        self._log.info("bridge_started", name=self._config.name, connections=len(self._config.connections))

    async def stop(self) -> None:
        """Settle what is on its way, leave the peers and the broker."""
        deadline_s = self._config.stop_deadline_ms / 1000
        await asyncio.gather(*[way.stop(deadline_s) for way in self._ways])
        await self._uplink.close()

    def _make(self, connection: ConnectionConfig) -> list[Direction]:
        name, line = self._config.name, self._uplink.connection
        clock, metrics = self._clock, self._metrics
        ways = []
        if any(rule.goes_out for rule in connection.rules):
            sender = Sender(connection, name, line, clock, metrics)
            ways.append(Direction(OUT, connection, name, sender, clock, metrics))
        if any(rule.comes_in for rule in connection.rules):
            receiver = PeerReceiver(connection, name, line, clock, metrics)
            ways.append(Direction(IN, connection, name, receiver, clock, metrics))
        return ways
