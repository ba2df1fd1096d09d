"""The proxy finds the broker through controllers: real ones, over sockets, with either of them restarted.

Everything runs on one loop; a restart is a new application on the same directory. A broker returns at another port, so
only the route can lead to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.app import BrokerApp
from broker.config import BrokerConfig
from controller.app import ControllerApp
from controller.config import ControllerConfig
from mqtt_proxy.app import ProxyApp
from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.decode import decode
from mqtt_proxy.mqtt.codec.encode import encode
from runtime.clock import SystemClock
from runtime.metrics import Registry

DEADLINE_S = 20
RETRY_S = 0.02


class Device:
    """One MQTT connection; EOFError when the proxy has closed it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int, client_id: str, *, clean: bool = True) -> Device:
        device = cls(*await asyncio.open_connection("127.0.0.1", port))
        device.send(packets.Connect(client_id, clean, 0))
        first, body = await device._packet()
        if first >> 4 != packets.CONNACK or body[1]:
            raise EOFError(f"refused with {body!r}")
        return device

    def send(self, packet: packets.Packet) -> None:
        self._writer.write(encode(packet))

    async def take(self) -> packets.Packet:
        return decode(*await self._packet())

    async def _packet(self) -> tuple[int, bytes]:
        first, length, shift = (await self._reader.readexactly(1))[0], 0, 0
        while (byte := (await self._reader.readexactly(1))[0]) & 0x80:
            length, shift = length | (byte & 0x7F) << shift, shift + 7
        return first, await self._reader.readexactly(length | byte << shift)

    def close(self) -> None:
        self._writer.close()


class Site:
    """A controller, a broker and a proxy that know each other by the controller's address only."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._controller_port = 0
        self._sent = 0

    async def start_controller(self) -> None:
        config = ControllerConfig(
            port=self._controller_port, data_directory=self._directory / "controller", liveness_scan_ms=50
        )
        self.controller = ControllerApp(config)
        await self.controller.start()
        self._controller_port = self.controller.port

    async def start_broker(self, port: int = 0) -> None:
        config = BrokerConfig(
            port=port,
            data_directory=self._directory / "broker",
            controllers=(f"127.0.0.1:{self._controller_port}",),
            heartbeat_interval_ms=100,
        )
        self.broker = BrokerApp(config)
        await self.broker.start()

    async def start_proxy(self) -> None:
        config = ProxyConfig(
            host="127.0.0.1",
            port=0,
            controllers=(f"127.0.0.1:{self._controller_port}",),
            reconnect_delay_ms_max=100,
        )
        self.proxy = ProxyApp(config, clock=SystemClock(), registry=Registry())
        await self.proxy.start()

    async def publish(self) -> None:
        """Send one more number until it is acknowledged."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    device = await Device.connect(self.proxy.port, "publisher")
                    device.send(packets.Publish(b"a/b", b"%d" % self._sent, 1, False, False, 7))
                    assert await device.take() == packets.Puback(7)
                    break
                except (EOFError, OSError):
                    await asyncio.sleep(RETRY_S)
        device.close()
        self._sent += 1

    async def subscribe(self) -> None:
        device = await Device.connect(self.proxy.port, "reader", clean=False)
        device.send(packets.Subscribe(1, [("a/#", 1)]))
        assert await device.take() == packets.Suback(1, [1])
        device.close()

    async def check_all_delivered(self) -> None:
        """The stored session gets every acknowledged number, in order."""
        async with asyncio.timeout(DEADLINE_S):
            device = await Device.connect(self.proxy.port, "reader", clean=False)
            found: list[int] = []
            while len(found) < self._sent:
                packet = await device.take()
                assert isinstance(packet, packets.Publish)
                device.send(packets.Puback(packet.packet_id))
                if int(packet.payload) not in found:  # what was lost between two answers may have been stored twice
                    found.append(int(packet.payload))
        device.close()
        assert found == list(range(self._sent))


@asynccontextmanager
async def site(directory: Path) -> AsyncIterator[Site]:
    made = Site(directory)
    await made.start_controller()
    await made.start_broker()
    await made.start_proxy()
    await made.subscribe()
    await made.publish()
    yield made
    await made.proxy.stop()
    await made.broker.stop()
    await made.controller.stop()


async def test_a_broker_that_returns_elsewhere_is_found_again(tmp_path: Path) -> None:
    async with site(tmp_path) as running:
        before = running.broker.port
        await running.broker.stop()
        await running.start_broker()
        assert running.broker.port != before
        await running.publish()
        await running.check_all_delivered()


async def test_without_a_controller_the_broker_keeps_serving_and_is_found_where_it_was(tmp_path: Path) -> None:
    async with site(tmp_path) as running:
        port = running.broker.port
        await running.controller.stop()
        await running.publish()
        await running.broker.stop()
        await running.start_broker(port)
        await running.publish()
        await running.start_controller()
        await running.check_all_delivered()


async def test_a_controller_that_returns_learns_of_a_broker_that_moved_meanwhile(tmp_path: Path) -> None:
    async with site(tmp_path) as running:
        await running.controller.stop()
        await running.broker.stop()
        await running.start_broker()
        await running.start_controller()
        await running.publish()
        await running.check_all_delivered()


@pytest.mark.parametrize("late", ["controller", "broker"])
async def test_the_proxy_may_be_first(tmp_path: Path, late: str) -> None:
    running = Site(tmp_path)
    await running.start_controller()
    await running.start_broker()
    if late == "controller":
        await running.controller.stop()
    else:
        await running.broker.stop()
    starting = asyncio.ensure_future(running.start_proxy())
    await asyncio.sleep(5 * RETRY_S)  # a few attempts without an answer
    assert not starting.done()
    await (running.start_controller() if late == "controller" else running.start_broker())
    async with asyncio.timeout(DEADLINE_S):
        await starting
    await running.publish()
    await running.proxy.stop()
    await running.broker.stop()
    await running.controller.stop()
