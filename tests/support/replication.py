"""A master and replicas of one log in one process, over real sockets and real stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from broker.replication import frames
from broker.replication.follower import ReplicaIdentity
from broker.replication.frames import FROM_MASTER, Decoder, Greeting, Hello, prove
from broker.replication.ha_client import HaClient
from broker.replication.ha_server import HaServer
from broker.replication.leader import Acknowledge, Leader, LeaderSettings, SyncStateSet
from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from runtime.clock import Clock, SystemClock
from runtime.faults import FaultPoints
from tests.sim.stores import message

SETTINGS = StoreSettings(
    segment_size_bytes=64 * 1024, record_size_bytes_max=16 * 1024, free_space_bytes_min=0, ballast_size_bytes=0
)
LOG = structlog.get_logger()
NONCE = b"n" * 16


def open_store(directory: Path, **role: Any) -> LogStore:
    """Open a store on the running loop."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    return LogStore.open(
        directory, SETTINGS, clock=SystemClock(), faults=FaultPoints(),
        schedule=asyncio.get_running_loop().call_soon_threadsafe, log=LOG, **role,
    )  # fmt: skip


def append(store: LogStore, count: int, size: int = 100) -> int:
    """Append messages; returns the end of the log."""
    queue = store.queues.open(b"q")
    for number in range(count):
        store.append(message([queue], b"%06d" % number + bytes(size)))
    return store.end_position


class Caller:
    """Sends frames to a master by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._decoder = Decoder(FROM_MASTER)
        self._frames: list[frames.Frame] = []

    @classmethod
    async def dial(cls, master: Master | int) -> Caller:
        """Connect to a master, or to a port of this machine."""
        port = master if isinstance(master, int) else master.server.port
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def read(self) -> frames.Frame | None:
        """The next frame, None at the end of the connection."""
        async with asyncio.timeout(60):
            while not self._frames:
                try:
                    data = await self._reader.read(65_536)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    async def hello(
        self, secret: str | None = None, greeting: frames.Frame | None = None, **changes: Any
    ) -> frames.Frame | None:
        """Send the hello of a replica; returns the answer."""
        greeting = greeting or await self.read()
        assert isinstance(greeting, Greeting)
        fields: dict[str, Any] = {
            "broker": 2,
            "epoch": 0,
            "begin": 0,
            "end": 0,
            "nonce": NONCE,
            "cluster": "c",
            "group": "g",
        }
        hello = Hello(**(fields | changes))
        self.writer.write(frames.encode_hello(hello, lambda content: prove(secret, greeting.nonce, content)))
        return await self.read()


async def until(condition: Callable[[], bool], what: str = "what was waited for") -> None:
    """Let the loop turn until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)
    assert condition(), what


class Master:
    """A store that is served to replicas."""

    def __init__(self, directory: Path, epoch: int, *, clock: Clock | None = None, **server: Any) -> None:
        self.directory, self.epoch = directory, epoch
        self.superseded: list[int] = []
        self.server = HaServer(
            clock or SystemClock(), LOG, superseded=self.superseded.append,
            **{"keys": {}, "open_to_all": False} | server,
        )  # fmt: skip
        self.store: LogStore = None  # type: ignore[assignment]
        self.leader: Leader = None  # type: ignore[assignment]

    async def start(self, members: tuple[int, ...] = (1,), port: int = 0) -> Master:
        """Open the log for its epoch and listen."""
        self.store = open_store(self.directory, epoch=self.epoch)
        await self.server.start("127.0.0.1", port)
        self.lead(members)
        return self

    def lead(self, members: tuple[int, ...] = (1,)) -> None:
        """Become the master of the epoch."""
        self.leader = Leader(
            1, self.epoch, self.store.replica.epochs[-1][1], SyncStateSet(members, 1), Acknowledge(), LeaderSettings(),
            cluster="c", group="g", confirm=self.store.confirm_position, now_ms=self.server.streams.now_ms(),
        )  # fmt: skip
        self.server.streams.lead(self.leader, self.store)

    @property
    def address(self) -> str:
        """The address that replicas dial."""
        return f"127.0.0.1:{self.server.port}"

    async def stop(self) -> None:
        """Close everything."""
        await self.server.stop()
        self.store.close()


class Replica:
    """A store that follows."""

    def __init__(
        self, directory: Path, master: Master | str, *, broker: int = 2, epoch: int = 0, **identity: Any
    ) -> None:
        self.store = open_store(directory, role="replica")
        self.failures: list[Exception] = []
        self.superseded: list[int] = []
        self.client = HaClient(
            self.store, ReplicaIdentity(broker=broker, cluster="c", group="g", **identity),
            master if isinstance(master, str) else master.address, epoch,
            silence_ms=20_000, superseded=self.superseded.append, failed=self.failures.append, log=LOG,
        )  # fmt: skip
        self.client.start()

    async def stop(self) -> None:
        """Close everything."""
        await self.client.stop()
        self.store.close()
