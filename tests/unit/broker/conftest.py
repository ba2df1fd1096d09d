"""A real store in a temporary directory whose callbacks run when the test says so, and a whole broker around one."""

from __future__ import annotations

import asyncio
import queue
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.broker import BrokerParts
from broker.config import BrokerConfig
from broker.router import handlers
from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from remoting import inprocess
from remoting.client.connection import Connection, dial
from remoting.protocol.records.image import encode_mqtt_image, image_views
from remoting.server.authorizer import Authorizer, Policy
from remoting.server.router import Router
from remoting.transport.contracts import Dial
from runtime.faults import FaultPoints
from runtime.logs import get_logger
from runtime.metrics import Registry
from tests.support.clock import ManualClock

STORE_MS_AT = 32
"""Where a record says when it was stored: its checksum covers that, and no reader needs it to find the record."""
SETTINGS = StoreSettings(segment_size_bytes=8 * 1024 * 1024, free_space_bytes_min=0, ballast_size_bytes=0)


class StoreBench:
    """Opens, settles and reopens one store directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.faults = FaultPoints()
        self._calls: queue.Queue[Callable[[], None]] = queue.Queue()
        self.store = self._open()

    def _open(self) -> LogStore:
        return LogStore.open(
            self.directory,
            SETTINGS,
            clock=self.clock,
            faults=self.faults,
            schedule=self._calls.put,
            log=get_logger("test"),
        )

    def settle(self) -> None:
        """Run callbacks until everything written is confirmed."""
        while self.store.confirm_position < self.store.end_position:
            self._calls.get(timeout=10)()

    def reopen(self) -> LogStore:
        """Close and open again, as a restart does."""
        self.settle()
        self.store.close()
        self.store = self._open()
        return self.store


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[StoreBench]:
    made = StoreBench(tmp_path / "data")
    yield made
    made.store.close()


class BrokerBench:
    """A broker on a real store, reached over the in-process transport."""

    def __init__(self, directory: Path, clock: ManualClock, **options: object) -> None:
        self.config = BrokerConfig(data_directory=directory, controllers=(), store=SETTINGS, **options)  # type: ignore[arg-type]
        self.clock = clock
        self.faults = FaultPoints()
        self.connect_controller: Dial = dial
        """How the broker reaches a controller; a test sets its own before it starts the registration."""
        self.start()

    def start(self, epoch: int | None = None) -> None:
        """`epoch`: of a master in a group, which nobody confirms anything to yet; None for a node by itself."""
        loop = asyncio.get_running_loop()
        self.registry = Registry()
        self.store = LogStore.open(
            self.config.data_directory,
            SETTINGS,
            clock=self.clock,
            faults=self.faults,
            schedule=lambda function: loop.call_soon_threadsafe(function) and None,
            log=get_logger("test"),
            epoch=epoch,
        )
        self.broker = BrokerParts(
            self.config,
            self.store,
            self.clock,
            self.registry,
            get_logger("test"),
            connect=lambda address: self.connect_controller(address),
        )
        self.router = Router(handlers(self.broker))

    def judge_by(self, policy: Policy) -> Authorizer:
        """Let this policy decide on rights from now on."""
        self.broker.tools.authorizer.policy = policy
        return self.broker.tools.authorizer

    def connect(self) -> Connection:
        return inprocess.connect(self.router)

    async def restart(self) -> None:
        await self.settle()
        self.store.close()
        self.start()

    async def take_over(self) -> None:
        """Go on with a copy of the log, as the new master after `kill -9` of a whole group: its replicas have not
        confirmed any of it yet. `confirm` does."""
        await self.settle()
        epoch = self.store.epoch + 1
        copy = self.config.data_directory.with_name(f"epoch-{epoch}")
        shutil.copytree(self.config.data_directory, copy)
        self.store.close()
        self.config = replace(self.config, data_directory=copy)
        self.start(epoch)

    def confirm(self, position: int | None = None) -> None:
        """Let the replicas have everything below the position, None for everything there is and comes."""
        self.store.positions.limit_confirm(position)

    def damage(self, queue_id: int, offset: int) -> None:
        """Turn over a bit of the record that holds this message, in the log of the open store."""
        (position,) = self.store.reading.positions(queue_id, offset, 1)
        files = [each for each in (self.config.data_directory / "log").iterdir() if each.name.isdigit()]
        path = max((each for each in files if int(each.name) <= position), key=lambda each: int(each.name))
        with path.open("r+b") as file:
            file.seek(position - int(path.name) + STORE_MS_AT)
            (byte,) = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))

    async def settle(self) -> None:
        done = asyncio.get_running_loop().create_future()
        self.store.when_confirmed(self.store.end_position, lambda _error: done.set_result(None))
        await asyncio.wait_for(done, 10)

    def publish(self, *topics: bytes, body: bytes = b"x", flags: int = 1) -> bytes:
        """Body of an APPEND_MANY with one message per topic."""
        return b"".join([encode_mqtt_image(topic, body, flags, 1_000, b"device") for topic in topics])


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[BrokerBench]:
    bench = BrokerBench(tmp_path / "data", ManualClock())
    yield bench
    bench.store.close()


@pytest.fixture
def make_entries() -> Callable[..., list]:  # type: ignore[type-arg]
    """Decoded append entries, one per MQTT topic."""

    def make(*topics: bytes, body: bytes = b"x", flags: int = 1) -> list:  # type: ignore[type-arg]
        return image_views(b"".join([encode_mqtt_image(t, body, flags, 1_000, b"device") for t in topics]))

    return make
