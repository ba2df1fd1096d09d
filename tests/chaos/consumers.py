"""Clients of everything that stands on the log, beside the sources of a run.

POP in order and not, timers, transactions, wills, retained messages, shared subscriptions, lite topics: the clients of
the simulations (`tests/sim/consumers`), over the product's own client and real sockets, which finds and follows the
master. Invariant: what they learn goes into one account (`ConsumerState`). Thread rule: a thread with an event loop of
its own; `drain`, `stop` and the properties from any thread, the account after `stop`.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.chaos.judges import Verdict
from tests.sim.consumers.cast import Cast
from tests.sim.consumers.uplink_door import UplinkDoor
from tests.support.consumer_state import ConsumerState

PACE = 4.0
"""Everything is so much slower than in a simulation."""
CLOCK_JUMP_MS = 61_000
"""How far the clocks of a run's nodes may be off; a timer may come so early."""
POLL_S = 0.1
OWED_INTERVAL_S = 1.0


class ChaosScene:
    """What the clients are given."""

    def __init__(self, controllers: list[str], group: str, seed: int) -> None:
        self.state = ConsumerState(early_ms=CLOCK_JUMP_MS)
        self.chance = random.Random(f"{seed}/consumers")
        self.is_draining = self.is_over = False
        self.senders = 0
        self.pace = PACE
        self.failures: list[str] = []
        self._controllers, self._group = controllers, group
        self._doors: list[UplinkDoor] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def door(self) -> UplinkDoor:
        """A connection of its own."""
        self._doors.append(UplinkDoor(self._controllers, self._group))
        return self._doors[-1]

    def now_ms(self) -> int:
        """Wall time."""
        return time.time_ns() // 1_000_000

    def start(self, coroutine: Any) -> None:
        """Run something of a client."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failures.append(repr(task.exception()))

    async def close(self) -> None:
        """End everything."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for door in self._doors:
            await door.uplink.close()


class Consumers:
    """The clients of a run, in a thread."""

    def __init__(self, controllers: Callable[[], list[str]], group: str, seed: int) -> None:
        self._controllers, self._group, self._seed = controllers, group, seed
        self._scene: ChaosScene | None = None
        self._cast: Cast | None = None
        self._stop = threading.Event()
        self._drain = threading.Event()
        self.is_settled = False
        """After `drain`: whether everybody has what was owed to them."""
        self.failure = ""
        self._thread = threading.Thread(target=self._run, name="consumers", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def drain(self) -> None:
        """Send nothing new; take and acknowledge all there is."""
        self._drain.set()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(60)

    def owed(self) -> str:
        """What is still due to somebody, for a complaint."""
        found = self._scene.state.owed() if self._scene is not None else []
        return f"{len(found)} owed: {[each.detail for each in found[:3]]}"

    def _run(self) -> None:
        try:
            asyncio.run(self._play())
        except Exception as error:
            self.failure = repr(error)

    async def _play(self) -> None:
        scene = self._scene = ChaosScene(self._controllers(), self._group, self._seed)
        self._cast = Cast(scene)
        looked = 0.0
        while not self._stop.is_set():
            await asyncio.sleep(POLL_S)
            scene.is_draining = self._drain.is_set()
            if scene.is_draining and not scene.senders and time.monotonic() - looked > OWED_INTERVAL_S:
                looked = time.monotonic()
                self.is_settled = not scene.state.owed()
        scene.is_over = True
        await scene.close()

    def verdict(self, *, is_cleaned: bool) -> Verdict:
        """The account, after `stop`; `is_cleaned`: the log was cleaned, and what groups did not read is gone."""
        verdict = Verdict("consumer state", counts={"broken": 0})
        scene, cast = self._scene, self._cast
        assert scene is not None, self.failure
        assert cast is not None
        state = scene.state
        cast.account()
        state.account(1 << 62 if is_cleaned else 0)
        verdict.checked = len(state.entries)
        for name, account in sorted(state.groups.items()):
            verdict.counts[f"given to {name}"] = sum(account.given.values())
            verdict.counts[f"done by {name}"] = len({*account.done, *account.perhaps})
            if account.buried:
                verdict.counts[f"dead letters of {name}"] = len(account.buried)
        for topic in sorted({each.topic for each in state.entries.values()}):
            verdict.counts[f"sent to {topic}"] = sum(each.topic == topic for each in state.entries.values())
        verdict.counts["retained read"] = state.retained_reads
        for rule, detail in state.broken:
            verdict.blame("broken", f"{rule}: {detail}")
        for failure in [*scene.failures, *([self.failure] if self.failure else [])]:
            verdict.blame("broken", f"a client failed: {failure}")
        return verdict
