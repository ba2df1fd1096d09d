"""Composition root of the bridge: our broker's line, and up to two directions for each configured connection.

Ready means that every direction is up. Inside `lightmq up` a peer that is away does not make the installation unready:
what is published is kept in the log, and devices are served; the reason is on /readyz all the same.

A `Direction` keeps one direction of one connection up: connect, work, wait, connect again. Invariant: at most one
connection to the peer exists in a direction; the reason of its end is logged once while it lasts.
Loop rule: made and used on one event loop.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Protocol

from mqtt_bridge.config import IN, OUT, BridgeConfig, ConnectionConfig
from mqtt_bridge.message import BridgeMetrics, client_id
from mqtt_bridge.peer import BridgeClient, ConnectionAccepted, PeerLostError
from mqtt_bridge.receiver import PeerReceiver
from mqtt_bridge.sender import Sender
from remoting import background
from remoting.client.connection import signing_dial
from remoting.client.master_link import Backoff
from remoting.client.tls import ClientTls
from remoting.client.uplink import Uplink
from remoting.protocol.errors import LightMQError
from remoting.transport.contracts import Connection
from runtime.clock import Clock
from runtime.logs import get_logger
from runtime.metrics import Registry

STEADY_MS = 5_000
"""A connection that lasted this long makes the next failure a first one."""


class Work(Protocol):
    """What is done over the connection: a sender or a receiver."""

    async def prepare(self) -> None:
        """Before the peer is needed. Raises LightMQError."""

    async def poll(self) -> None:
        """While the peer is away, after each attempt. Raises LightMQError."""

    def listen(self, peer: BridgeClient) -> None:
        """Before a connection is made: take its callbacks."""

    async def begin(self, peer: BridgeClient, welcome: ConnectionAccepted) -> None:
        """What makes the connection useful. Raises LightMQError."""

    async def run(self, peer: BridgeClient) -> None:
        """Until it ends. Raises LightMQError."""

    async def settle(self, deadline_s: float) -> None:
        """Settle what is in flight. Raises LightMQError."""


class Direction:
    """Keeps one direction up until it is stopped."""

    def __init__(
        self, direction: str, config: ConnectionConfig, installation: str, work: Work, clock: Clock,
        metrics: BridgeMetrics,
    ) -> None:  # fmt: skip
        self.direction = direction
        self.name = config.name
        self.up = False
        self.reason = "not connected yet"
        self._config = config
        self._client_id = client_id(installation, config, direction)
        self._work = work
        self._clock = clock
        first_ms, ms_max = config.reconnect_delay_ms_min, config.reconnect_delay_ms_max
        # Each pause is 0.5 to 1 of its step, so that many bridges do not dial in step.
        spread = lambda: 0.5 + 0.5 * (clock.monotonic_ns() % 997 / 997)  # noqa: E731
        self._backoff = Backoff(min(first_ms, ms_max), ms_max, spread=spread)
        self._task: asyncio.Task[None] | None = None
        self._log = get_logger("bridge")
        self._connects = metrics.connects.child(config.name, direction)
        self._ends = metrics.disconnects.child(config.name, direction)
        metrics.connected.child(config.name, direction, function=lambda: float(self.up))

    def start(self) -> None:
        """Begin to connect."""
        self._task = background.task(self._keep_up(), "keeps the bridge's connections")

    async def stop(self, deadline_s: float) -> None:
        """Settle what is in flight and leave the peer."""
        if self._task is None:
            return
        if self.up:
            try:
                await asyncio.wait_for(self._work.settle(deadline_s), deadline_s + 1)
            except (LightMQError, TimeoutError) as error:
                self._log.warning("stop_unsettled", connection=self.name, direction=self.direction, error=str(error))
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    async def _keep_up(self) -> None:
        while True:
            began_ms = self._clock.monotonic_ns() / 1_000_000
            try:
                await self._work.prepare()
                await self._connection()
            except (LightMQError, OSError) as error:
                self._ended(str(error))
            now_ms = self._clock.monotonic_ns() / 1_000_000
            if now_ms - began_ms >= STEADY_MS:
                self._backoff.reached()
            pause_ms = self._backoff.failed(now_ms)
            assert pause_ms is not None, "its patience has no end"
            await asyncio.sleep(pause_ms / 1000)
            await self._poll()

    async def _connection(self) -> None:
        config = self._config
        password = None if config.password_file is None else first_line(config.password_file)
        peer = BridgeClient(config, self._client_id, persistent=self.direction == IN, password=password)
        self._work.listen(peer)
        try:
            welcome = await peer.connect()
            await self._work.begin(peer, welcome)
            self.up, self.reason = True, ""
            self._connects.value += 1
            self._log.info(
                "peer_connected",
                connection=self.name,
                direction=self.direction,
                peer=f"{config.host}:{config.port}",
                session_present=welcome.session_present,
            )
            await self._work.run(peer)
        finally:
            self.up = False
            await peer.close()

    def _ended(self, reason: str) -> None:
        self._ends.value += 1
        if reason != self.reason:  # logged once, not at every attempt
            self._log.warning("peer_lost", connection=self.name, direction=self.direction, reason=reason)
        self.reason = reason

    async def _poll(self) -> None:
        try:
            await self._work.poll()
        except LightMQError as error:
            self._log.debug("poll_failed", connection=self.name, error=str(error))


def first_line(file: Path) -> str:
    """The password in a file. Raises PeerLostError when it cannot be read: it may be there at the next attempt."""
    try:
        return file.read_text().partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise PeerLostError(
            f"cannot read the password file {file}: {getattr(error, 'strerror', None) or error}"
        ) from error


class BridgeApp:
    """All bridges of one installation; `connection` leads to a broker in this process."""

    def __init__(
        self, config: BridgeConfig, *, clock: Clock, registry: Registry, connection: Connection | None = None
    ) -> None:
        self._config = config
        self._uplink = Uplink.configured(
            signing_dial(config.access_key_file, ClientTls.of(config.dial_tls)),
            config.broker, config.controllers, config.broker_name, present=connection, has_mqtt=True,
        )  # fmt: skip
        self._clock = clock
        self._metrics = BridgeMetrics(registry)
        self._directions: list[Direction] = []
        self._log = get_logger("bridge")

    @property
    def ready(self) -> bool:
        """Whether every direction is up."""
        return self._uplink.line.up and all(one.up for one in self._directions)

    def reason(self) -> str:
        """Which peers are away and why; empty when none is."""
        if self._directions and not self._uplink.line.up:
            return "our broker cannot be reached"
        return "; ".join(f"{one.name} ({one.direction}): {one.reason}" for one in self._directions if not one.up)

    def status(self) -> dict[str, Any]:
        """The directions and whether they are up."""
        return {"ways": [{"connection": one.name, "direction": one.direction, "up": one.up, "reason": one.reason}
                         for one in self._directions]}  # fmt: skip

    async def start(self) -> None:
        """Begin to connect; waits for nothing, because our broker and the peers may come later."""
        if not self._config.connections:
            return
        self._uplink.start()
        for connection in self._config.connections:
            self._directions += self._make(connection)
        for one in self._directions:
            one.start()
        self._log.info("bridge_started", name=self._config.name, connections=len(self._config.connections))

    async def stop(self) -> None:
        """Settle what is in flight, leave the peers and the broker."""
        deadline_s = self._config.stop_deadline_ms / 1000
        await asyncio.gather(*[one.stop(deadline_s) for one in self._directions])
        await self._uplink.close()

    def _make(self, connection: ConnectionConfig) -> list[Direction]:
        name, line = self._config.name, self._uplink.connection
        clock, metrics = self._clock, self._metrics
        directions = []
        if any(rule.goes_out for rule in connection.rules):
            sender = Sender(connection, name, line, clock, metrics)
            directions.append(Direction(OUT, connection, name, sender, clock, metrics))
        if any(rule.comes_in for rule in connection.rules):
            receiver = PeerReceiver(connection, name, line, clock, metrics)
            directions.append(Direction(IN, connection, name, receiver, clock, metrics))
        return directions
