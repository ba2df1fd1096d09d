"""A cluster of shipped processes: controllers and brokers, each from its own `ControllerApp` or `BrokerApp`.

Invariant: nothing of them is replaced but time, network, randomness, the calls that reach the disk, and the thread of
the index, whose jobs run on the loop a little later.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog

from broker.app import BrokerApp
from broker.config import BrokerConfig, ReplicationConfig
from broker.roles import member_log, replicas_manager
from broker.store.log.index_thread import Workers
from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from broker.store.state.state_tables import SharedTable
from controller.app import ControllerApp
from controller.config import ControllerConfig
from remoting import clock
from tests.sim.whole.disk import Disks
from tests.sim.whole.loop import EPOCH_NS, Host, HostLoop, Violation, World
from tests.sim.whole.network import Network

CLIENT_PORT, REPLICA_PORT, CONTROLLER_PORT, RAFT_PORT = 10_911, 10_912, 9_876, 9_877
STORE = StoreSettings(
    segment_size_bytes=32 * 1024,
    first_segment_size_bytes=32 * 1024,
    record_size_bytes_max=8 * 1024,
    index_tail_entries=64,
    index_merge_runs=3,
    retention_ms=0,
    free_space_bytes_min=1,
    ballast_size_bytes=0,
)


class LoopJobs:
    """Does what `IndexThread` does on the loop that the store belongs to, each job a little later."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule
        self._jobs: list[tuple[Callable[[], Any], Callable[[Any, Exception | None], None]]] = []

    @property
    def pending(self) -> int:
        """Jobs that wait."""
        return len(self._jobs)

    def submit(self, job: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        """Run it soon."""
        self._jobs.append((job, done))
        self._schedule(self._run_one)

    def drain(self) -> None:
        """Run all that wait."""
        while self._jobs:
            self._run_one()

    close = drain

    def abandon(self) -> None:
        """Run nothing more."""
        self._jobs.clear()

    def _run_one(self) -> None:
        if not self._jobs:
            return
        job, done = self._jobs[0]
        result, error = None, None
        try:
            result = job()
        except Exception as failure:
            error = failure
        del self._jobs[0]
        done(result, error)


class LoopFlush:
    """Does what `FlushThread` does on the loop that the store belongs to, after the time that a flush takes."""

    def __init__(self, flush: Callable[[], bool], interval_s: float, cluster: Cluster) -> None:
        self._flush, self._interval_s, self._cluster = flush, interval_s, cluster
        self._is_wanted = self._is_over = False

    def want(self) -> None:
        """Ask for a flush."""
        if not self._is_wanted:
            self._is_wanted = True
            loop = asyncio.get_running_loop()
            assert isinstance(loop, HostLoop)
            loop.call_later(self._interval_s + self._cluster.disks.flush_time_s(loop.host), self._run)

    def close(self) -> None:
        """Flush once more."""
        if not self._is_over:
            self._is_over = True
            self._flush()

    def _run(self) -> None:
        self._is_wanted = False
        if not self._is_over:
            self._is_over = not self._flush()


def store_opener(cluster: Cluster) -> type:
    """`LogStore` whose slow work is done by the simulation."""
    workers = Workers(flush=lambda flush, seconds: LoopFlush(flush, seconds, cluster), jobs=LoopJobs)  # type: ignore[arg-type, return-value]

    class SimulatedStore:
        open = staticmethod(partial(LogStore.open, workers=workers))

    return SimulatedStore


class Process(Host):
    """A host that runs one shipped process, and starts it again from its directory."""

    def __init__(self, cluster: Cluster, name: str, address: str, make: Callable[[Process], Any]) -> None:
        super().__init__(cluster.world, name, address)
        self.cluster, self._make = cluster, make
        self.directory = cluster.disks.add(self)
        self.app: Any = None

    def begin(self) -> None:
        """Start it; a start that fails is a violation."""
        self.world.tell(self.name, "starts")

        async def main() -> None:
            self.app = self._make(self)
            await self.app.start()
            self.world.tell(self.name, "has started")
            error = await self.app.until_failed()
            self.world.failures.append(f"{self.name} failed: {error!r}")

        task = self.start(main)
        task.add_done_callback(self._ended)

    def _ended(self, task: Any) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.world.failures.append(f"{self.name} did not start: {task.exception()!r}")

    def die(self, *, power: bool) -> None:
        """Kill the process, or cut the power of the machine."""
        if not self.is_up:
            return
        self.world.tell(self.name, "loses its power" if power else "is killed")
        app, self.app = self.app, None
        self.kill(app)
        self.cluster.network.process_ended(self, silently=power)
        self.cluster.disks.unlock(self)
        if power:
            self.machine_boots += 1
            self.cluster.disks.power_cut(self)

    def stop_in_order(self, then: Callable[[], object]) -> None:
        """SIGTERM: the process ends by itself."""
        loop, app, boot = self.loop, self.app, self.boot
        if loop is None or app is None:
            return
        self.world.tell(self.name, "is asked to stop")

        async def stop() -> None:
            await app.stop()
            self.world.tell(self.name, "has stopped")
            self.world.after(0, ended)

        def ended() -> None:
            if self.boot == boot:
                self.die(power=False)
                then()

        with loop.running():
            loop.create_task(stop())


class Cluster:
    """Some controllers and brokers."""

    def __init__(self, world: World, folder: Path, *, controllers: int, brokers: int, **replication: Any) -> None:
        self.world = world
        self.network = Network(world)
        world.network = self.network  # type: ignore[attr-defined]
        self.disks = Disks(world, folder)
        self.mode = replication.get("mode", "controller")
        self._replication = replication
        self._members = tuple(f"b{each}@127.0.1.{each}:{CLIENT_PORT}" for each in range(1, brokers + 1))
        self._peers = tuple(
            f"n{each}@127.0.2.{each}:{CONTROLLER_PORT}@{RAFT_PORT}" for each in range(1, controllers + 1)
        )
        self.addresses = tuple(f"127.0.2.{each}:{CONTROLLER_PORT}" for each in range(1, controllers + 1))
        self.controllers = [
            Process(self, f"n{each}", f"127.0.2.{each}", self._controller) for each in range(1, controllers + 1)
        ]
        self.brokers = [Process(self, f"b{each}", f"127.0.1.{each}", self._broker) for each in range(1, brokers + 1)]

    @property
    def processes(self) -> list[Process]:
        """All of them."""
        return self.controllers + self.brokers

    def _controller(self, process: Process) -> ControllerApp:
        peers = self._peers if len(self._peers) > 1 else ()
        secret = self.disks.folder / "raft.secret"
        config = ControllerConfig(
            host=process.address, port=CONTROLLER_PORT, data_directory=process.directory / "controller",
            node_id=process.name, peers=peers, raft_secret_file=secret if peers else None,
        )  # fmt: skip
        return ControllerApp(config, clock=process.clock)

    def _broker(self, process: Process) -> BrokerApp:
        more = dict(self._replication)
        if self.mode == "dledger":
            more |= {"members": self._members, "node_id": process.name}
        config = BrokerConfig(
            host=process.address, port=CLIENT_PORT, data_directory=process.directory / "broker",
            controllers=self.addresses, store=STORE,
            replication=ReplicationConfig(enabled=True, port=REPLICA_PORT, **more),
        )  # fmt: skip
        return BrokerApp(config, clock=process.clock)

    def master(self) -> Process | None:
        """A broker that serves as the master."""
        for each in self.brokers:
            member = each.app._member if each.app is not None else None
            if member is not None and member.gate.serving and member.master is not None:
                return each
        return None


def patch_product(patch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    """Take time, randomness, logs, locks and the disk from the simulation."""
    world, chance = cluster.world, random.Random(f"{cluster.world.seed}/secrets")
    patch.setattr(clock, "monotonic_ns", lambda: int(world.now * 1e9))
    patch.setattr(clock, "monotonic_s", lambda: world.now)
    patch.setattr(clock, "now_ns", lambda: EPOCH_NS + int(world.now * 1e9))
    patch.setattr(secrets, "token_bytes", lambda size=32: chance.randbytes(size))
    patch.setattr(secrets, "token_hex", lambda size=32: chance.randbytes(size).hex())
    patch.setattr(secrets, "token_urlsafe", lambda size=32: chance.randbytes(size).hex())
    patch.setattr(secrets, "randbelow", chance.randrange)
    patch.setattr(secrets, "randbits", chance.getrandbits)
    patch.setattr(os, "urandom", chance.randbytes)
    patch.setattr(SharedTable.__init__, "__defaults__", (1,))  # their order would follow the hashes of the process
    patch.setattr(member_log, "LogStore", store_opener(cluster))
    patch.setattr(replicas_manager, "machine_boot", _machine_boot)
    structlog.configure(
        processors=[lambda _logger, level, fields: _shown(world, level, fields)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.ReturnLoggerFactory(),
    )
    logging.disable(logging.CRITICAL)
    cluster.disks.patch(patch)
    secret = cluster.disks.folder / "raft.secret"
    secret.write_text("a secret of sixteen")
    secret.chmod(0o600)


def _machine_boot() -> str:
    """What the kernel of the host says since when it runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HostLoop)
    return f"{loop.host.name}-{loop.host.machine_boots}"


def _shown(world: World, level: str, fields: Any) -> Any:
    if world.trace is not None:
        world.tell("log", f"{level} {dict(fields)}")
    raise structlog.DropEvent


__all__ = ["Cluster", "Process", "Violation", "patch_product"]
