"""Clients of everything that stands on the log, in one process of their own, over the product's client."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from tests.sim.consumers.cast import Cast
from tests.sim.consumers.uplink_door import UplinkDoor
from tests.sim.whole.faults import SKEW_MS_MAX
from tests.sim.whole.loop import Host
from tests.support.consumer_state import ConsumerState

if TYPE_CHECKING:
    from tests.sim.whole.group import Cluster

KINDS_MAX = 3


class WholeScene:
    """What the clients of a schedule are given."""

    pace = 1.0

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._world = cluster, cluster.world
        self.chance = random.Random(f"{cluster.world.seed}/consumers")
        self.state = ConsumerState(early_ms=2 * SKEW_MS_MAX)
        self.is_draining = self.is_over = False
        self.senders = 0
        self.kinds = tuple(sorted(self.chance.sample(Cast.KINDS, self.chance.randint(1, KINDS_MAX))))
        self.host = Host(cluster.world, "cl", "127.0.4.1")
        self.host.start(self._begin)

    async def _begin(self) -> None:
        self.cast = Cast(self, self.kinds)

    def door(self) -> UplinkDoor:
        """A connection of its own."""
        return UplinkDoor(self._cluster.addresses)

    def now_ms(self) -> int:
        """Wall time."""
        return self.host.clock.now_ms()

    def start(self, coroutine: Any) -> None:
        """Run something of a client."""
        asyncio.get_running_loop().create_task(coroutine).add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._world.failures.append(f"a client failed: {task.exception()!r}")
