"""A master and replicas on real stores and sockets, without controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from broker.replication.follower import ReplicaIdentity
from broker.replication.ha_client import HaClient
from broker.replication.ha_server import HaServer
from broker.replication.leader import Acknowledge, Leader, LeaderSettings, SyncStateSet
from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from runtime.clock import SystemClock
from runtime.faults import FaultPoints
from runtime.logs import get_logger
from tests.support.images import placed

SETTINGS = StoreSettings(segment_size_bytes=64 * 1024, free_space_bytes_min=0, ballast_size_bytes=0)
LOG = get_logger("test")
DEADLINE_S = 60.0


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.002)


def open_store(directory: Path, role: str, epoch: int | None = None) -> LogStore:
    loop = asyncio.get_running_loop()
    return LogStore.open(
        directory, SETTINGS, clock=SystemClock(), faults=FaultPoints(), schedule=loop.call_soon_threadsafe, log=LOG,
        role=role, epoch=epoch,
    )  # fmt: skip


def fill(store: LogStore, queue: bytes, count: int, size: int = 200) -> int:
    """Append messages one by one; returns the end."""
    number = store.queues.open(queue)
    for _ in range(count):
        end = store.append(placed((number,), b"x" * size)).end_position
    return end


class Master:
    """Broker 1 as the master of an epoch."""

    def __init__(self, directory: Path, epoch: int, members: set[int], **settings) -> None:
        self.store = open_store(directory, "writer", epoch)
        self.superseded: list[int] = []
        self.server = HaServer(
            SystemClock(), LOG, keys=settings.pop("keys", {}), open_to_all=False, superseded=self.superseded.append,
            tls=settings.pop("tls", None),
        )  # fmt: skip
        self.leader = Leader(
            1, epoch, self.store.replica.epochs[-1][1], SyncStateSet(members, 1), Acknowledge(in_sync_min=len(members)),
            LeaderSettings(**({"heartbeat_ms": 50} | settings)), cluster="C", group="g",
            confirm=self.store.confirm_position, now_ms=self.server.streams.now_ms(),
        )  # fmt: skip

    async def start(self, port: int = 0) -> str:
        await self.server.start("127.0.0.1", port)
        self.server.streams.lead(self.leader, self.store)
        return f"127.0.0.1:{self.server.port}"

    async def stop(self) -> None:
        await self.server.stop()
        self.store.close()


class Replica:
    """Another broker behind a master."""

    def __init__(self, directory: Path, broker: int, address: str, epoch: int, **identity) -> None:
        self.store = open_store(directory, "replica")
        self.superseded: list[int] = []
        self.failures: list[Exception] = []
        tls = identity.pop("tls", None)
        self.client = HaClient(
            self.store, ReplicaIdentity(**({"broker": broker, "cluster": "C", "group": "g"} | identity)), address,
            epoch,
            silence_ms=identity.pop("silence_ms", 5_000) if "silence_ms" in identity else 5_000,
            superseded=self.superseded.append, failed=self.failures.append, log=LOG, tls=tls,
        )  # fmt: skip
        self.client.start()

    async def stop(self) -> None:
        await self.client.stop()
        self.store.close()


def same_bytes(one: LogStore, other: LogStore) -> bool:
    """Whether two logs hold the same bytes up to the same end."""
    if one.end_position != other.end_position or one.replica.epochs != other.replica.epochs:
        return False
    position = one.begin_position
    while (part := one.replica.raw(position, 1 << 20)) is not None:
        there = other.replica.raw(position, 1 << 20)
        if there is None or bytes(there.data) != bytes(part.data):
            return False
        position = part.end
    return True
