"""What goes wrong between and in the nodes, and what brings it back, drawn from the world's seed.

Wiping is limited to what the product promises to bear: disks are lost, of nodes that run and of nodes that are down,
while a majority of the controllers still has its files and votes, whatever that majority does at the moment.
"""

from __future__ import annotations

from collections import Counter

from tests.sim.raft.operators import Operator
from tests.sim.raft.world import World

PAUSE_SECONDS_MAX = 2.0
SLOW_SECONDS_MAX = 3.0
BURST_MAX = 25
OPERATIONS_MAX = 12
"""A cut comes within so many operations on the disk."""


class Faults:
    """One world's bad luck."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.operator = Operator(world)
        self.counts: Counter[str] = Counter()
        self._kinds = {
            "connection lost": (self._disconnect, 4),
            "connection half lost": (self._give_up, 4),
            "connected": (self._connect, 14),
            "slow link": (self._slow, 4),
            "isolated": (self._isolate, 2),
            "paused": (self._pause, 2),
            "killed": (self._kill, 2),
            "leader killed": (self._kill_leader, 2),
            "power cut armed": (self._arm, 4),
            "all killed": (self._kill_all, 0.3),
            "wiped": (self._wipe, 1),
            "started": (self._start, 14),
            "burst": (self._burst, 3),
        }
        if world.sizes.changing:
            self._kinds |= {"member added": (self.operator.add, 6), "member removed": (self.operator.remove, 4)}
        self._weights = [weight * world.random.choice((0.3, 1, 3)) for _, weight in self._kinds.values()]

    def happen(self) -> None:
        """One of them."""
        (kind,) = self.world.random.choices(list(self._kinds), self._weights)
        if self._kinds[kind][0]():
            self.counts[kind] += 1

    def end(self) -> None:
        """Nothing fails any more."""
        self.world.disk.spare()

    def _node(self) -> str | None:
        return self.world.random.choice(sorted(self.world.nodes)) if self.world.nodes else None

    def _leader(self) -> str | None:
        leaders = sorted(each for each, node in self.world.nodes.items() if node.is_leader)
        return self.world.random.choice(leaders) if leaders else None

    def _disconnect(self) -> bool:
        links = sorted(self.world.network.up)
        if links:
            self.world.disconnect(*self.world.random.choice(links))
        return bool(links)

    def _give_up(self) -> bool:
        links = sorted(self.world.network.up)
        if links:
            self.world.network.give_up(*self.world.random.choice(links))
        return bool(links)

    def _connect(self) -> bool:
        ids = sorted(self.world.nodes)
        missing = [(one, other) for one in ids for other in ids if one < other and not self._whole(one, other)]
        if missing:
            for pair in missing if self.world.random.random() < 0.5 else [self.world.random.choice(missing)]:
                self.world.connect(*pair)
        return bool(missing)

    def _whole(self, one: str, other: str) -> bool:
        return {(one, other), (other, one)} <= self.world.network.up

    def _slow(self) -> bool:
        links = sorted(self.world.links)
        if links:
            until = self.world.now + self.world.random.uniform(0, SLOW_SECONDS_MAX)
            self.world.network.slow[self.world.random.choice(links)] = until
        return bool(links)

    def _isolate(self) -> bool:
        node_id = self._leader() or self._node()
        for other in self.world.ids:
            if node_id is not None and other != node_id:
                self.world.disconnect(node_id, other)
        return node_id is not None

    def _pause(self) -> bool:
        node_id = self._node()
        if node_id is not None:
            self.world.paused[node_id] = self.world.now + self.world.random.uniform(0, PAUSE_SECONDS_MAX)
        return node_id is not None

    def _kill(self) -> bool:
        return self._crash(self._node())

    def _kill_leader(self) -> bool:
        return self._crash(self._leader())

    def _crash(self, node_id: str | None) -> bool:
        if node_id is not None:
            self.world.crash(node_id)
        return node_id is not None

    def _kill_all(self) -> bool:
        for node_id in sorted(self.world.nodes):
            self.world.crash(node_id)
        return True

    def _arm(self) -> bool:
        node_id = self._node()
        if node_id is not None:
            self.world.disk.cut_after(self.world.folder / node_id, self.world.random.randint(1, OPERATIONS_MAX))
        return node_id is not None

    def _start(self) -> bool:
        down = sorted(
            (self.world.started if self.world.sizes.changing else set(self.world.ids)) - set(self.world.nodes)
        )
        if down:
            self.world.boot(self.world.random.choice(down))
        return bool(down)

    def _wipe(self) -> bool:
        """One whose loss leaves a majority that votes; a newcomer may lose its disk again."""
        world = self.world
        if world.sizes.changing:
            candidates = [each for each in sorted(world.started) if self.operator.may_wipe(each)]
            if candidates:
                world.wipe(world.random.choice(candidates))
            return bool(candidates)
        voters = {each for each in world.ids if world.votes(each)}
        spare = 2 * (len(voters) - 1) > len(world.ids)
        candidates = [each for each in world.ids if spare or (each not in voters and 2 * len(voters) > len(world.ids))]
        if candidates:
            world.wipe(world.random.choice(candidates))
        return bool(candidates)

    def _burst(self) -> bool:
        """More than a batch at once: an absent node will need several batches to catch up."""
        leader = self._leader()
        if leader is not None:
            for _ in range(self.world.random.randint(2, BURST_MAX)):
                if leader in self.world.nodes:
                    self.world.act(leader, self.world.nodes[leader].burst)
        return leader is not None
