"""A cluster whose events are given step by step, where a schedule would draw them."""

from __future__ import annotations

from collections.abc import Callable

from broker.replication.leader import Acknowledge
from tests.sim.cluster.broker import Broker, Build, Cluster
from tests.sim.cluster.checkers import Judge
from tests.sim.cluster.controllers import Controllers
from tests.sim.cluster.electing import elected_cluster
from tests.sim.cluster.network import Network
from tests.sim.cluster.pace import USUAL, Pace
from tests.sim.cluster.platter import Disks
from tests.sim.cluster.world import World

LONG_MS = 60_000


class Story:
    """Brokers 1 to `count` and three controllers, or none where they elect; nothing fails unless requested."""

    def __init__(
        self,
        build: Build | None = None,
        *,
        count: int = 3,
        in_sync_min: int = 1,
        start: bool = True,
        pace: Pace = USUAL,
        disks: Disks | None = None,
    ) -> None:
        build, self._disks = build or Build(), disks
        self.world = World(1, trace=True)
        self.network = Network(self.world)
        if build.elects:
            self.cluster = elected_cluster(self.world, self.network, build, pace, count, disks)
        else:
            self.cluster = self._controlled(build, pace, count, in_sync_min)
        self.controllers, self.judge, self.brokers = self.cluster.controllers, self.cluster.judge, self.cluster.brokers
        self.answers: dict[int, bool] = {}
        self._ident = 0
        for broker in self.brokers:
            broker.flush_ms = 0.5
            if start:
                broker.start()

    def _controlled(self, build: Build, pace: Pace, count: int, in_sync_min: int) -> Cluster:
        controllers = Controllers(self.world, self.network, count, build.flags, pace)
        judge, rule = Judge(is_weak=False), Acknowledge(in_sync_min=in_sync_min)
        cluster = judge.cluster = Cluster(
            self.world, self.network, controllers, judge, rule, build, pace, disks=self._disks
        )
        cluster.brokers = [Broker(cluster, number) for number in range(1, count + 1)]
        controllers.members = list(cluster.brokers)
        controllers.take_view = lambda node, view: node.learn(view)
        controllers.on_change = judge.changed
        return cluster

    def broker(self, ident: int) -> Broker:
        """The broker with that id."""
        return self.brokers[ident - 1]

    @property
    def master(self) -> Broker:
        """The present master."""
        master = self.cluster.master()
        assert master is not None
        return master

    def others(self, *brokers: Broker) -> list[Broker]:
        """All brokers but these."""
        return [each for each in self.brokers if each not in brokers]

    def run(self, milliseconds: float) -> None:
        """Let time pass."""
        self.world.run(self.world.now + milliseconds)

    def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until a condition holds."""
        deadline = self.world.now + LONG_MS
        while not condition():
            assert self.world.now < deadline, "\n".join(self.world.lines or ())
            self.run(5)

    def settle(self, *members: int) -> None:
        """Let every running broker catch up and the set be these."""
        self.until(
            lambda: (
                self.cluster.master() is not None
                and set(self.controllers.view().in_sync) == set(members)
                and all(each.log.flushed == self.master.log.end for each in self.brokers if each.is_up)
                and self.master.log.confirm == self.master.log.end
            )
        )

    def append(self, broker: Broker, count: int) -> list[int]:
        """Send messages to a broker that believes to be master; returns their ids, for `answers`."""
        idents = []
        for _ in range(count):
            self._ident += 1
            ident = self._ident
            assert broker.leading is not None
            broker.leading.append(0, ident, lambda safe, ident=ident: self.answers.__setitem__(ident, safe))
            idents.append(ident)
        return idents

    def ask(self, broker: Broker, wait_ms: float = 0.0) -> list[int | None]:
        """Ask a broker for the end of the visible messages; the answer is added to the list, None for a refusal."""
        answers: list[int | None] = []
        broker.deliver(broker.read, wait_ms, answers.append)
        return answers

    def cut(self, sources: list[Broker], targets: list[Broker], *, controllers: bool = False) -> None:
        """Cut these off from each other in both directions; `controllers`: from the controllers too."""
        names = [each.name for each in targets] + [each.name for each in self.controllers.nodes if controllers]
        for source in sources:
            self.network.cut |= {(source.name, name) for name in names} | {(name, source.name) for name in names}

    def deafen(self, broker: Broker) -> None:
        """The controllers receive from the broker, it receives nothing from them."""
        self.network.cut |= {(each.name, broker.name) for each in self.controllers.nodes}

    def heal(self) -> None:
        """Restore all connections."""
        self.network.cut.clear()

    def end(self) -> None:
        """Every broker returns, then the verdict."""
        self.heal()
        for each in self.brokers:
            if not each.is_up:
                each.start()
        self.until(self.judge.is_settled)
        self.judge.final()
