"""One schedule: a cluster made from a seed, some seconds of faults, healing, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from broker.replication.leader import Acknowledge
from remoting.protocol.errors import LightMQError
from tests.sim.cluster.broker import Broker, Build, Cluster
from tests.sim.cluster.checkers import Judge
from tests.sim.cluster.clients import Consumer, Producer, Reader
from tests.sim.cluster.controllers import Controllers
from tests.sim.cluster.electing import elected_cluster
from tests.sim.cluster.faults import Faults
from tests.sim.cluster.network import Network
from tests.sim.cluster.pace import STORM, USUAL, Pace
from tests.sim.cluster.platter import Disks
from tests.sim.cluster.world import Violation, World

QUIET_TICKS, HEALED_TICKS = 6, 120


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a seed."""

    seed: int
    rule: str
    """The rule that was broken, empty when none was."""
    detail: str
    events: int
    faults: int
    acknowledged: int
    epochs: int
    pulled: int
    """Messages that consumers got from replicas."""
    lines: tuple[str, ...] = ()


class Schedule:
    """A cluster and its faults."""

    def __init__(
        self, seed: int, build: Build | None = None, *, trace: bool = False, disks: Disks | None = None
    ) -> None:
        world = self.world = World(seed, trace=trace)
        chance = world.chance
        build = build or Build()
        count = 3 if chance.random() < 0.75 else 2
        in_sync_min = 2 if count == 3 and chance.random() < 0.7 else 1
        mode = chance.choice(("async", "count")) if chance.random() < 0.06 else "all"
        self.has_retention = chance.random() < 0.15
        self.may_wipe = mode == "all" and in_sync_min == 2 and chance.random() < 0.25
        self.has_reserve = mode == "all" and in_sync_min == 2 and not build.is_async
        """Whether a disk may be damaged: what it loses is always on that of another broker in sync."""
        has_learner = count == 3 and chance.random() < 0.1
        self.pace = pace = STORM if chance.random() < 0.6 else USUAL
        self.network, self._disks = Network(world), disks
        if build.elects:
            self._electing(build, pace, 5 if chance.random() < 0.2 else 3)
        else:
            self._controlled(build, pace, count, mode, in_sync_min, has_learner=has_learner)
        self.cluster.has_retention = self.has_retention
        for broker in self.cluster.brokers:
            broker.start()
        self.producers = [Producer(self.cluster, number) for number in range(1, 1 + chance.randrange(1, 3))]
        self.readers = [Reader(self.cluster, number) for number in (1, 2)]
        self.consumers = [Consumer(self.cluster, number) for number in (1, 2)]
        self.faults = Faults(self)
        world.tell("--", f"{count} brokers, {mode}, at least {in_sync_min} in sync, learner {has_learner}")

    def _electing(self, build: Build, pace: Pace, count: int) -> None:
        cluster = self.cluster = elected_cluster(self.world, self.network, build, pace, count, self._disks)
        self.controllers, self.judge = cluster.controllers, cluster.judge
        self.may_wipe = self.may_wipe or self.world.chance.random() < 0.3
        self.has_reserve = not build.is_async

    def _controlled(
        self, build: Build, pace: Pace, count: int, mode: str, in_sync_min: int, *, has_learner: bool
    ) -> None:
        world, network = self.world, self.network
        self.controllers = Controllers(world, network, count, build.flags, pace)
        judge = self.judge = Judge(is_weak=mode != "all")
        rule = Acknowledge(mode=mode, count=2, in_sync_min=in_sync_min)
        cluster = self.cluster = judge.cluster = Cluster(
            world, network, self.controllers, judge, rule, build, pace, disks=self._disks
        )
        cluster.brokers = [
            Broker(cluster, number, is_learner=has_learner and number == count) for number in range(1, count + 1)
        ]
        self.controllers.members = list(cluster.brokers)
        self.controllers.take_view = lambda node, view: node.learn(view)
        self.controllers.on_change = judge.changed

    def run(self) -> Result:
        """Run it to its end."""
        try:
            self.play()
        except Violation as violation:
            return self._result(violation.rule, str(violation))
        except AssertionError as error:
            return self._result("an assertion", repr(error))
        except LightMQError as error:
            return self._result("no broker fails", f"{type(error).__name__}: {error}")
        return self._result("", "")

    def play(self) -> None:
        """Quiet, faults, healing, verdict. Raises Violation."""
        world, tick_ms = self.world, self.pace.tick_ms
        world.run(QUIET_TICKS * tick_ms * world.chance.random())
        self.faults.begin()
        world.run(world.now + self.pace.faults_ticks * tick_ms * (0.3 + 0.7 * world.chance.random()))
        self._heal()
        self.judge.final()

    def _heal(self) -> None:
        world = self.world
        world.tell("--", "everything is healed")
        self.faults.end()
        tick_ms = self.pace.tick_ms
        deadline = world.now + HEALED_TICKS * tick_ms
        world.run(world.now + 2 * tick_ms)
        for producer in self.producers:
            producer.finish()
        while not self.judge.is_settled():
            if world.now >= deadline:
                raise Violation("everybody catches up", self._state())
            world.run(world.now + tick_ms)

    def _state(self) -> str:
        return f"{self.controllers.view()} " + " ".join(
            f"{each.name}: {each.log.begin}..{each.log.end} flushed {each.log.flushed} confirm {each.log.confirm} "
            f"{'fenced' if each.is_fenced else 'master' if each.leading else 'replica'};"
            for each in self.cluster.brokers
        )

    def _result(self, rule: str, detail: str) -> Result:
        return Result(
            self.world.seed,
            rule,
            detail,
            self.world.events,
            self.faults.count,
            len(self.judge.acks),
            self.controllers.view().master_epoch,
            self.judge.pulled_from_replicas,
            tuple(self.world.lines or ()),
        )


def run(seed: int, build: Build | None = None, *, trace: bool = False) -> Result:
    """Run the schedule of a seed."""
    if build is None or not build.is_stored:
        return Schedule(seed, build, trace=trace).run()
    with Disks() as disks, build.planted():
        return Schedule(seed, build, trace=trace, disks=disks).run()
