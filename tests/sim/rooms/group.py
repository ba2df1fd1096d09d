"""A broker group as its rooms see it: a log that opens with a tail that is not confirmed yet, and a confirm position.

One machine at a time is the master: the shipped `LogStore` on a disk that forgets, and around it every room of a broker
(`BrokerParts`) behind its router, on an event loop of its own. Its replicas are a model: what is written is on theirs a
while later, and confirmed then; sometimes they are away. The next master is a replica that has all that was confirmed
and, of the rest, any part: its directory is the former master's, cut there by the store as a replica cuts it, or
another one into which the log was copied, as after a wipe.

Invariant: nothing confirmed is missing in the log of the next master, which begins with what its disk says is
confirmed, and knows more once its replicas have come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from broker.broker import BrokerParts
from broker.config import BrokerConfig
from broker.delayed.buckets import BUCKET_MS
from broker.router import handlers
from broker.store.append.raw_part import RawPart
from broker.store.log.index_thread import Workers
from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from remoting.protocol.records.record import HEADER
from remoting.server.router import Router
from runtime.faults import FaultPoints
from runtime.metrics import Registry
from tests.sim.stores import Silent
from tests.sim.whole.disk import Disks, PowerCut
from tests.sim.whole.group import LoopFlush, LoopJobs
from tests.sim.whole.loop import EPOCH_NS, Host, HostLoop, Violation, World

STORE = StoreSettings(
    segment_size_bytes=16 * 1024,
    first_segment_size_bytes=16 * 1024,
    record_size_bytes_max=8 * 1024,
    index_tail_entries=64,
    index_merge_runs=3,
    retention_ms=0,
    snapshot_log_bytes=12_000,
    free_space_bytes_min=1,
    ballast_size_bytes=0,
)
RETAINED_BYTES = 96 * 1024
"""Kept where retention runs; a segment goes at a time."""
UPKEEP_S = 0.5
PART_BYTES = 1 << 16
BUCKET_ENDS_S = 5.0
"""After how long at most the first bucket of timers ends."""
TIMES: dict[str, Any] = {
    "proxy_grace_ms": 1_000,
    "will_verdict_ms": 400,
    "transaction_check_after_ms": 1_500,
    "transaction_check_interval_ms": 1_000,
    "transaction_checks_max": 1_000,
    "shared_wait_ms": 400,
}
"""Of the configuration: shorter than shipped, so that all of it happens within seconds."""


class Machine(Host):
    """A broker of the group: its disk and, while it is the master, its rooms."""

    def __init__(self, group: Group, number: int) -> None:
        super().__init__(group.world, f"b{number}", f"127.0.1.{number}")
        self.group = group
        self.clock.offset_ns = group.offset_ns
        self.directory = group.disks.add(self) / "broker"
        self.store: Any = None
        self.router: Any = None
        self.has_replicas = False
        """Whether what is written here is confirmed a while later."""
        self._limit = 0

    # -- as master ----------------------------------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        """Open the log, build the rooms and serve; what fails is a violation."""

        async def main() -> None:
            self.world.tell(self.name, f"opens its log for epoch {epoch}")
            self.store = store = self.open("writer", epoch)
            self.world.tell(self.name, f"leads, log {store.begin_position}..{store.end_position}, "
                            f"confirmed {store.confirm_position}")  # fmt: skip
            config = BrokerConfig(data_directory=self.directory, controllers=(), store=STORE, **TIMES)
            self.parts = BrokerParts(config, store, self.clock, Registry(), self.group.log)
            self.router = Router(handlers(self.parts))
            store.positions.on_written(self._written)
            self.parts.start()
            self._upkeep()
            chance = self.world.chance
            self._replicas_come(chance.choice((0.0, 0.05, 0.5, 2.0)) * chance.random())

        self.has_replicas, self._limit = False, 0
        task = self.start(main)
        task.add_done_callback(self._begun)

    def _begun(self, task: Any) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.world.failures.append(f"{self.name} did not start: {task.exception()!r}")

    def open(self, role: str, epoch: int | None) -> LogStore:
        """Its log; the flush thread's and the index thread's work is done on the loop."""
        loop, group = self.loop, self.group
        assert loop is not None
        workers = Workers(
            flush=lambda flush, seconds: LoopFlush(flush, seconds, SimpleNamespace(disks=group.disks)),  # type: ignore[arg-type, return-value]
            jobs=LoopJobs,  # type: ignore[arg-type]
        )
        settings = replace(STORE, retention_size_bytes=RETAINED_BYTES) if group.has_retention else STORE
        return LogStore.open(
            self.directory, settings, clock=self.clock, faults=FaultPoints(), log=group.log,
            schedule=lambda function: loop.call_soon(function) and None,
            soon=(lambda function: loop.call_soon(function) and None) if group.is_quick else None,
            role=role, epoch=epoch, workers=workers,
        )  # fmt: skip

    def _upkeep(self) -> None:
        now_ms = self.clock.now_ms()
        has_more = self.store.maintain(now_ms)
        self.parts.maintain(now_ms)
        assert self.loop is not None
        self.loop.call_later(UPKEEP_S / 20 if has_more else UPKEEP_S, self._upkeep)

    # -- its replicas -------------------------------------------------------------------------------------------------

    def _replicas_come(self, delay_s: float) -> None:
        assert self.loop is not None
        self.loop.call_later(delay_s, self._came)

    def _came(self) -> None:
        self.has_replicas = True
        self._written(self.store.end_position)

    def replicas_leave(self, seconds: float) -> None:
        """Nothing is confirmed for a while."""
        if self.store is not None and self.has_replicas:
            self.has_replicas = False
            self._replicas_come(seconds)

    def _written(self, end: int) -> None:
        if self.has_replicas and self.loop is not None:
            chance = self.group.chance
            self.loop.call_later(chance.choice((0.0005, 0.002, 0.03)) * chance.random(), self._copied, end)

    def _copied(self, end: int) -> None:
        if self.has_replicas and end > self._limit:
            self._limit = end
            self.store.positions.limit_confirm(end)

    # -- its end ------------------------------------------------------------------------------------------------------

    @property
    def is_serving(self) -> bool:
        """Whether requests reach the rooms."""
        return self.is_up and self.router is not None

    def die(self, *, power: bool) -> None:
        """The process ends at once; with `power` the disk forgets what was not flushed."""
        if not self.is_up:
            return
        self.world.tell(self.name, "loses its power" if power else "is killed")
        store, self.store, self.router = self.store, None, None
        self.kill(store, getattr(self, "parts", None))
        self.group.disks.unlock(self)
        self.group.disks.spare()
        if store is not None and not store._closed:
            store._give_back()
        if power:
            self.machine_boots += 1
            self.group.disks.power_cut(self)
        self.group.lost(self)

    def stop_in_order(self) -> None:
        """The rooms stop, everything is confirmed or not, and the log is closed."""
        store, loop = self.store, self.loop
        if store is None or loop is None:
            return
        self.world.tell(self.name, "stops")
        self.router = None
        power = False
        with loop.running():
            try:
                self.parts.stop()
                store.close()
            except PowerCut:
                power = True
        self.group.note()  # the last flush confirms, and answers, too
        self.die(power=power)

    # -- as replica ---------------------------------------------------------------------------------------------------

    @contextmanager
    def as_replica(self) -> Iterator[LogStore]:
        """Its log as a replica has it open, of a machine that is not up."""
        self.boot += 1
        self.loop = HostLoop(self)
        with self.loop.running():
            store = self.open("replica", None)
            yield store
            store.close()
        self.kill(store)
        self.group.disks.unlock(self)


class Group:
    """The machines of a group, one of which leads."""

    def __init__(self, world: World, folder: Path, *, has_retention: bool) -> None:
        self.world, self.has_retention = world, has_retention
        self.chance = world.chance
        self.offset_ns = _until_a_bucket_ends(world.chance.uniform(0.0, BUCKET_ENDS_S)) * 1_000_000
        """Wall time is that of the simulation and this."""
        self.is_quick = world.chance.random() < 0.5
        """Whether small flushes are done on the loop."""
        self.log = WorldLog(world) if world.trace is not None else Silent()
        self.disks = Disks(world, folder)
        self.epochs = 0
        self.confirmed = 0
        """Everything below it was confirmed by a master."""
        self.lines: list[Any] = []
        self.delay_s = 0.0
        """Most that a slow network adds."""
        self._machines = 1
        self.machine = Machine(self, 1)

    def begin(self) -> None:
        """The present machine leads."""
        if not self.machine.is_up:
            self.epochs += 1
            self.machine.lead(self.epochs)

    def note(self) -> None:
        """Note what is confirmed."""
        if self.machine.store is not None:
            self.confirmed = max(self.confirmed, self.machine.store.confirm_position)

    def lost(self, machine: Machine) -> None:
        """The process of a machine is gone, and with it its connections."""
        lines, self.lines = self.lines, []
        for line in lines:
            line.broke(machine)

    def succeed(self, how: str) -> None:
        """Have another log lead next, of a replica: cut somewhere behind what was confirmed, or copied up to there."""
        former = self.machine
        assert not former.is_up
        parts: list[RawPart] = []
        with former.as_replica() as store:
            if store.end_position < self.confirmed:
                raise Violation("nothing confirmed is lost", f"{store.end_position} < {self.confirmed}")
            begin = store.begin_position
            end = self.chance.choice([self.confirmed, store.end_position, *self._ends(store)])
            if how == "copied":
                parts = list(_parts(store, begin))
            else:
                store.replica.truncate(end)
        if how == "copied":
            self._machines += 1
            self.machine = Machine(self, self._machines)
            self._copy(parts, begin, end)
        self.world.tell(self.machine.name, f"is next, its log {how} at {end}")

    def _ends(self, store: LogStore) -> Iterator[int]:
        """Ends of records behind what was confirmed."""
        for part in _parts(store, max(self.confirmed, store.begin_position)):
            offset, view = 0, memoryview(part.data)
            while offset < len(view):
                offset += HEADER.unpack_from(view, offset)[0]
                yield part.position + offset

    def _copy(self, parts: Iterable[RawPart], begin: int, end: int) -> None:
        """A log becomes that of the present machine, which has none, up to a position."""
        with self.machine.as_replica() as store:
            if begin:
                store.replica.reset(begin)
            for part in parts:
                store.replica.append_raw(part)
            if end < store.end_position:
                store.replica.truncate(end)


def _parts(store: LogStore, at: int) -> Iterator[RawPart]:
    """The log from a position on."""
    while at < store.end_position:
        part = store.replica.raw(at, PART_BYTES)
        assert part is not None, at
        data = bytes(part.data)
        yield replace(part, data=data)
        at = part.position + len(data)


def _until_a_bucket_ends(seconds: float) -> int:
    """Milliseconds from the simulation's first moment to so long before the end of a bucket of timers."""
    return int(BUCKET_MS - EPOCH_NS // 1_000_000 % BUCKET_MS - seconds * 1_000)


class WorldLog:
    """The product's log as lines of the trace."""

    def __init__(self, world: World) -> None:
        self._world = world

    def info(self, event: str, **fields: object) -> None:
        """Record a line."""
        self._world.tell("log", " ".join([event, *(f"{name}={value}" for name, value in fields.items())]))

    debug = warning = error = exception = info

    def bind(self, **_fields: object) -> WorldLog:
        """The same."""
        return self
