"""A controller and members of one group in this process, each with a data directory of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from broker.app import BrokerApp
from broker.config import BrokerConfig, ReplicationConfig
from broker.store.settings import StoreSettings
from controller.app import ControllerApp
from controller.config import ControllerConfig
from remoting.client.connection import dial
from remoting.client.uplink import Uplink
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from remoting.transport.contracts import Connection
from remoting.transport.failures import ConnectionLost, RequestTimeout

STORE = StoreSettings(segment_size_bytes=1024 * 1024, free_space_bytes_min=0, ballast_size_bytes=0)
DEADLINE_S = 40.0


async def until(condition: Callable[[], object]) -> None:
    """Wait for an effect of other tasks of this loop."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


class Cluster:
    """One controller, some brokers, a connection to the master."""

    def __init__(self, directory: Path, **replication) -> None:
        self.directory = directory
        self.replication = {"port": 0, "in_sync_min": 1, "heartbeat_timeout_ms": 10_000} | replication
        self.controller: ControllerApp | None = None
        self.controllers: tuple[str, ...] = ()
        self.brokers: dict[int, BrokerApp] = {}
        self.uplink: Uplink | None = None
        self.connection: Connection | None = None

    async def start_controller(self, port: int = 0) -> None:
        config = ControllerConfig(data_directory=self.directory / "controller", port=port)
        self.controller = ControllerApp(config)
        await self.controller.start()
        self.controllers = (f"127.0.0.1:{self.controller.port}",)

    async def add(self, number: int, *, port: int = 0, **replication) -> BrokerApp:
        """A member in its own directory, the same one at every start."""
        config = BrokerConfig(
            data_directory=self.directory / f"broker-{number}", port=port, controllers=self.controllers, store=STORE,
            replication=ReplicationConfig(enabled=True, **(self.replication | replication)),
        )  # fmt: skip
        app = self.brokers[number] = BrokerApp(config)
        await app.start()
        return app

    async def settle(self, *numbers: int) -> BrokerApp:
        """Wait until these are in sync under one master; returns the master."""

        def settled() -> bool:
            master = self.master()
            wanted = {self.brokers[number]._member.manager.steps.broker_id for number in numbers}
            return master is not None and master._member.master.leader.members.committed >= wanted

        await until(settled)
        master = self.master()
        assert master is not None
        return master

    def master(self) -> BrokerApp | None:
        for app in self.brokers.values():
            if app._member.gate.serving and app._member.master is not None:
                return app
        return None

    async def connect(self) -> Connection:
        self.uplink = Uplink.configured(dial, "", self.controllers, "", pause_ms_max=50)
        self.uplink.start()
        self.connection = self.uplink.connection
        return self.connection

    async def publish(self, *payloads: bytes) -> int:
        """Append these to one topic at the master; returns the code of the answer."""
        assert self.connection is not None
        body = b"".join([encode_mqtt_image(b"plant/1", one, 1, 1, b"device") for one in payloads])
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    return (await self.connection.request(Command(RequestCode.APPEND_MANY, body=body))).code
                except (ConnectionLost, RequestTimeout):
                    continue  # at least once

    async def stop(self) -> None:
        if self.uplink is not None:
            await self.uplink.close()
        for app in self.brokers.values():
            await app.stop()
        if self.controller is not None:
            await self.controller.stop()


def log_bytes(directory: Path) -> bytes:
    """The content of the log files, concatenated."""
    return b"".join(path.read_bytes() for path in sorted((directory / "log").iterdir()))


@asynccontextmanager
async def cluster(directory: Path, count: int, **replication) -> AsyncIterator[Cluster]:
    """A started cluster of `count` members, the first of them master and all in sync."""
    made = Cluster(directory, **replication)
    try:
        await made.start_controller()
        for number in range(1, count + 1):
            await made.add(number)
            await until(lambda number=number: made.brokers[number]._member.manager.steps.role is not None)
        await made.settle(*made.brokers)
        await made.connect()
        yield made
    finally:
        await made.stop()
