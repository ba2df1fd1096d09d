"""A listener on a real port with handlers that record their calls, and raw clients."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

from mqtt_proxy.config import QuotaConfig
from mqtt_proxy.listening.connection import MqttConnection
from mqtt_proxy.listening.handshakes import PLAIN, ListenerSpec
from mqtt_proxy.listening.listener import Listener
from mqtt_proxy.listening.open_sockets import OpenSockets
from mqtt_proxy.metrics import FrontCounters
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.session.events import ConnectRequested, Event, PublishBatch
from mqtt_proxy.quotas import Quotas
from runtime.metrics import Registry
from tests.support.clock import ManualClock

SOCKET_OPTIONS = ("connections_max", "connections_per_address_max")


class Recorder:
    """A handler that records its calls; accepts at once unless set to wait."""

    def __init__(self, connection: MqttConnection, accept: bool) -> None:
        self.connection = connection
        self.accept = accept
        self.events: list[Event] = []
        self.calls = 0
        self.writable: list[bool] = []
        self.closed: asyncio.Future[tuple[str, bool]] = asyncio.get_running_loop().create_future()
        self.came = asyncio.Event()

    def on_events(self, events: list[Event]) -> None:
        assert not self.closed.done()
        self.calls += 1
        for event in events:
            self.events.append(event)
            if isinstance(event, ConnectRequested) and self.accept:
                self.connection.session.answers.accept(False)
                self.connection.flush()
            if isinstance(event, PublishBatch):
                self.connection.session.answers.acknowledge([p.packet_id for p in event.publishes if p.qos])
                self.connection.flush()
        self.came.set()

    def on_writable(self, writable: bool) -> None:
        assert not self.closed.done()
        self.writable.append(writable)
        self.came.set()

    def on_closed(self, reason: str, will_due: bool) -> None:
        self.closed.set_result((reason, will_due))
        self.came.set()

    async def wait(self, kind: type, count: int = 1) -> Any:
        while True:
            found = [event for event in self.events if isinstance(event, kind)]
            if len(found) >= count:
                return found[-1]
            self.came.clear()
            await asyncio.wait_for(self.came.wait(), 5)


class World:
    """A listener, its handlers, and raw clients."""

    def __init__(self, *, accept: bool = True, **options: Any) -> None:
        self.clock = ManualClock()
        self.counters = FrontCounters(Registry())
        self.handlers: list[Recorder] = []
        options.setdefault("limits", SessionLimits())
        of_sockets = {name: options.pop(name) for name in SOCKET_OPTIONS if name in options}
        quotas = options.pop("quotas", Quotas(QuotaConfig()))
        options.setdefault("sockets", OpenSockets(self.counters, quotas, **of_sockets))
        self.listener = Listener(
            lambda connection: self._handler(connection, accept), clock=self.clock, counters=self.counters, **options
        )
        self.port = 0
        self._kept: list[asyncio.StreamWriter] = []

    def _handler(self, connection: MqttConnection, accept: bool) -> Recorder:
        self.handlers.append(Recorder(connection, accept))
        return self.handlers[-1]

    async def door(self, door: ListenerSpec) -> int:
        """Open a further port."""
        return await self.listener.start("127.0.0.1", 0, door)

    async def open(self, *sent: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self.open_at(self.port, *sent)

    async def open_at(
        self, port: int, *sent: object, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        self._kept.append(writer)  # a writer without a reference closes its socket
        writer.write(b"".join(p if isinstance(p, bytes) else encode(p) for p in sent))  # type: ignore[arg-type]
        return reader, writer


@contextlib.asynccontextmanager
async def world(*, door: ListenerSpec = PLAIN, **options: Any) -> AsyncIterator[World]:
    made = World(**options)
    made.port = await made.door(door)
    try:
        yield made
    finally:
        await made.listener.stop()
