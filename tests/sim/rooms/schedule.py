"""One schedule: a group and its clients made from a seed, some seconds of faults, healing, and the account.

Invariant: the same seed gives the same history; what killed processes had under way never runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.delayed import delayed
from broker.store.state.state_tables import SharedTable
from remoting import clock
from tests.sim.consumers.cast import Cast
from tests.sim.rooms.faults import Faults
from tests.sim.rooms.group import Group, Machine
from tests.sim.rooms.line import Door
from tests.sim.whole.loop import EPOCH_NS, Host, Violation, World
from tests.support.consumer_state import ConsumerState

FAULTS_S, HEALED_S, AFTER_S = 5.0, 40.0, 1.5
KINDS_MAX = 3
RETENTION_SHARE = 0.2
NOISE_BYTES = 1_500
TIMER_GRACE_MS = 300
"""How long the bucket of a timer is kept, instead of a minute."""
IN_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Result:
    """What came of a seed."""

    seed: int
    rule: str = ""
    """The rule that was broken, empty when none was."""
    detail: str = ""
    events: int = 0
    messages: int = 0
    deliveries: int = 0
    epochs: int = 0
    faults: Counter[str] = field(default_factory=Counter)


class RoomScene:
    """What the clients of a schedule are given."""

    def __init__(self, group: Group) -> None:
        self._group, self._world = group, group.world
        self.chance = random.Random(f"{group.world.seed}/clients")
        self.state = ConsumerState()
        self.is_draining = self.is_over = False
        self.senders = 0
        self.pace = 1.0
        self.host = Host(group.world, "cl", "127.0.3.1")
        self.host.clock.offset_ns = group.offset_ns
        self.host.start(_idle)

    def door(self) -> Door:
        """A connection of its own."""
        return Door(self._group, self.host)

    def now_ms(self) -> int:
        """Wall time."""
        return self.host.clock.now_ms()

    def start(self, coroutine: Any) -> None:
        """Run something of a client."""
        loop = self.host.loop
        assert loop is not None
        task = asyncio.Task(coroutine, loop=loop)
        loop.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._world.failures.append(f"a client failed: {task.exception()!r}")


async def _idle() -> None:
    """The clients' process does nothing but run its clients."""


class Schedule:
    """A group, its clients and its bad luck."""

    def __init__(self, seed: int, folder: Path, patch: pytest.MonkeyPatch, trace: Any = None) -> None:
        world = self.world = World(seed)
        world.trace = trace
        chance = world.chance
        has_retention = chance.random() < RETENTION_SHARE
        self.group = Group(world, folder, has_retention=has_retention)
        _patch_product(patch, self.group)
        self.faults = Faults(self.group)
        world.on_turn = self._turned
        self.scene = RoomScene(self.group)
        chosen = tuple(sorted(chance.sample(Cast.KINDS, chance.randint(1, KINDS_MAX))))
        self.kinds = chosen
        with self.scene.host.loop.running():  # type: ignore[union-attr]
            self.cast = Cast(self.scene, chosen, noise_bytes=NOISE_BYTES if has_retention else 0)

    def _turned(self, host: Host) -> None:
        if isinstance(host, Machine):
            self.group.note()  # first: what was confirmed in the turn that a power cut ended was told to clients
            if host.is_up and self.group.disks.is_cut(host):
                self.faults.cut(host)

    def play(self) -> None:
        """Faults, healing, account. Raises Violation."""
        world, scene = self.world, self.scene
        self.group.begin()
        self.faults.begin()
        self._run(FAULTS_S * (0.3 + 0.7 * world.chance.random()))
        self.faults.end()
        world.tell("--", "everything is healed")
        self._run(0.5)
        scene.is_draining = True
        end = world.now + HEALED_S
        while (scene.senders or scene.state.owed(self._begin())) and world.now < end:
            self._run(0.5)
        self._run(AFTER_S)
        scene.is_over = True
        self._run(0.6)
        self.cast.account()
        scene.state.account(self._begin())
        self._judge()

    def _begin(self) -> int:
        store = self.group.machine.store
        return store.begin_position if store is not None else 0

    def _run(self, seconds: float) -> None:
        end = self.world.now + seconds
        while self.world.now < end:
            self.world.run(min(self.world.now + 0.5, end))
            self._judge()

    def _judge(self) -> None:
        if self.scene.state.broken:
            raise Violation(*self.scene.state.broken[0])
        found = [each for each in self.world.failures if "PowerCut" not in each]
        if found:
            raise Violation("nothing fails", "; ".join(found[:3]))

    def run(self) -> Result:
        """Run it to its end."""
        rule = detail = ""
        try:
            self.play()
        except Violation as violation:
            rule, detail = violation.rule, f"{violation} ({', '.join(self.kinds)})"
        except AssertionError as error:
            rule, detail = "an assertion", repr(error)
        finally:
            self.group.machine.die(power=False)
            self.scene.host.kill()
        state = self.scene.state
        deliveries = sum(sum(each.given.values()) for each in state.groups.values())
        return Result(
            self.world.seed, rule, detail, self.world.events, len(state.entries), deliveries, self.group.epochs,
            self.faults.counts,
        )  # fmt: skip


def _patch_product(patch: pytest.MonkeyPatch, group: Group) -> None:
    """Take time, randomness, locks and the disk from the simulation."""
    world, chance = group.world, random.Random(f"{group.world.seed}/secrets")
    patch.setattr(clock, "monotonic_ns", lambda: int(world.now * 1e9))
    patch.setattr(clock, "monotonic_s", lambda: world.now)
    patch.setattr(clock, "now_ns", lambda: EPOCH_NS + group.offset_ns + int(world.now * 1e9))
    patch.setattr(SharedTable.__init__, "__defaults__", (1,))  # their order would follow the hashes of the process
    patch.setattr(delayed, "GRACE_MS", TIMER_GRACE_MS)
    for name in ("token_bytes", "token_hex", "token_urlsafe"):
        patch.setattr(secrets, name, lambda size=32, name=name: _secret(chance, name, size))
    patch.setattr(os, "urandom", chance.randbytes)
    group.disks.patch(patch)


def _secret(chance: random.Random, name: str, size: int) -> bytes | str:
    data = chance.randbytes(size)
    return data if name == "token_bytes" else data.hex()


def run(seed: int, *, trace: Callable[[str], object] | None = None, plant: Any = None) -> Result:
    """Run the schedule of a seed in this process."""
    logging.disable(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="lightmq-rooms-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None))
    patch = pytest.MonkeyPatch()
    try:
        if plant is not None:
            plant(patch)
        return Schedule(seed, folder, patch, trace).run()
    finally:
        patch.undo()
        shutil.rmtree(folder, ignore_errors=True)
