"""A broker: the shipped `broker/replication` around a model log, with the roles the controllers assign.

Fenced until the controllers accept its registration, it is then master or replica as they decide, never in an epoch its
log has seen. Connections are those of the simulated network where the product has sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from broker.reading.read_barrier import ReadBarrier
from broker.replication.epochs import Epochs
from broker.replication.follower import Follower
from broker.replication.frames import NONCE_BYTES
from broker.replication.host import StreamHost
from broker.replication.leader import Acknowledge, Leader, SyncStateSet
from broker.replication.log_following import LogFollowing
from broker.replication.majority import Majority
from broker.replication.replica_streams import ReplicaStreams
from broker.roles.election import Elector, GroupElection
from broker.roles.group_node import DamageFound, GroupNode, Start, StoodStill
from broker.roles.role_queue import RoleActions
from broker.roles.steps import KnownGroup, PauseWatch, ReplicaSteps
from broker.roles.term import MasterTerm, TermHandOver, TermRules
from broker.store.index.reader import Reader
from controller.replicas.group import GroupView, Live, RegisterReplica
from remoting.client.controllers import LeaderSearch
from tests.sim.cluster.asking import Asking, known
from tests.sim.cluster.checkers import Judge
from tests.sim.cluster.controllers import CLUSTER, GROUP
from tests.sim.cluster.disk import ModelLog
from tests.sim.cluster.following import Following
from tests.sim.cluster.leading import Leading, ReplicaSide
from tests.sim.cluster.network import Network, Stream
from tests.sim.cluster.opened import OpenedLog
from tests.sim.cluster.pace import BEAT_TICKS, Pace
from tests.sim.cluster.platter import Disks, PowerLost
from tests.sim.cluster.roles import Roles
from tests.sim.cluster.stored import StoredLog
from tests.sim.cluster.world import Node, World, WorldLog


@dataclass(frozen=True, slots=True)
class Build:
    """The parts of the brokers; a planted bug replaces the right part by another."""

    flags: frozenset[str] = frozenset()
    leader: type[Leader] = Leader
    follower: type[Follower] = Follower
    members: type[SyncStateSet] = SyncStateSet
    epochs: type[Epochs] = Epochs
    pauses: type[PauseWatch] = PauseWatch
    reader: type[Reader] = Reader
    streams: type[ReplicaStreams] = ReplicaStreams
    following: type[LogFollowing] = LogFollowing
    majority: type[Majority] = Majority
    elector: type[Elector] = Elector
    election: type[GroupElection] = GroupElection
    elects: bool = False
    """The brokers elect their master; there are no controllers."""
    is_async: bool = False
    """Brokers count what is written, flushed or not; only power cuts that leave a broker in sync its memory happen."""
    steps: type[ReplicaSteps] = ReplicaSteps
    search: type[LeaderSearch] = LeaderSearch
    node: type[GroupNode] = GroupNode
    actions: type[RoleActions[Following, Leading]] = RoleActions
    is_stored: bool = False
    """Logs are the shipped store's, on simulated disks, instead of models."""
    planted: Callable[[], AbstractContextManager[object]] = nullcontext
    """Leaves something out of the shipped store."""
    term: type[MasterTerm] = MasterTerm
    hand_over: type[TermHandOver] = TermHandOver
    barrier: type[ReadBarrier] = ReadBarrier


@dataclass(slots=True)
class Cluster:
    """What the brokers of one schedule share."""

    world: World
    network: Network
    controllers: Any
    """`Controllers`, or `electing.Electorate`."""
    judge: Judge
    acknowledge: Acknowledge
    build: Build
    pace: Pace
    brokers: list[Broker] = field(default_factory=list)
    disks: Disks | None = None
    """There if the logs are stored."""
    has_retention: bool = False

    def named(self, name: str) -> Broker:
        """The broker of that name, which is its address too."""
        return next(each for each in self.brokers if each.name == name)

    def master(self) -> Broker | None:
        """The broker that the controllers name, if it runs and knows."""
        master = self.controllers.view().master
        broker = self.brokers[master - 1] if master is not None else None
        return broker if broker is not None and broker.is_up and broker.leading is not None else None


class Broker(Node):
    """One broker of the group."""

    def __init__(self, cluster: Cluster, ident: int, *, is_learner: bool = False) -> None:
        super().__init__(cluster.world, f"b{ident}")
        self.cluster, self.ident, self.is_learner = cluster, ident, is_learner
        self.flags = cluster.build.flags
        self.log: Any = self._make_log()
        self.flush_ms = self.usual_flush_ms = self.world.chance.choice((0.5, 0.5, 5.0, 30.0))
        self.admitted = True
        """Whether it votes, where brokers do."""
        self.safe = True
        """False after its disk was replaced, or forgot what counted, until the controllers know."""
        self.saved_epoch = 0
        """The newest known epoch, on the disk."""
        self.losses = 0
        """How often it told the controllers that it has lost something, by its present process."""
        self._damaged_at: int | None = None
        self.slow_ms: float | None = None
        """How long each step to a role takes; drawn each time if None."""
        self.pauses = self._pause_watch()
        self._clear()

    def _make_log(self) -> Any:
        build, chance = self.cluster.build, self.cluster.world.chance
        if build.is_stored:
            return StoredLog(self)
        return ModelLog(chance, self.flags, build.epochs, is_async=build.is_async)

    def open_log(self, epoch: int) -> Any:
        """Open the log for the master of an epoch or, with 0, for a replica."""
        return self.log.open(epoch) if self.cluster.build.is_stored else OpenedLog(self, epoch)

    def _pause_watch(self) -> PauseWatch:
        return self.cluster.build.pauses(self.cluster.pace.pause_limit_ms, lambda: int(self.world.now), self._in_doubt)

    def _in_doubt(self, paused_ms: int) -> None:
        self.world.tell(self.name, f"paused for {paused_ms} ms and answers no request")
        self.roles.feed(StoodStill())

    def _clear(self) -> None:
        self.came_back = -1.0
        """When this process last resumed after a pause longer than a master may take."""
        self._stands_since = 0.0
        self.serving: Leading | None = None
        """The same while clients are answered."""
        self.opened: Any = None
        """The log as the present role has it open."""
        self.host = self._stream_host()
        self.streams = self.cluster.build.streams(self.host, keys={}, open_to_all=True, superseded=self.superseded)
        self.roles = Roles(self)
        self.is_fenced = True
        self._flushing = False
        self._generation = 0
        self._ticks = 0
        self.asking = Asking(self)
        self._suspended: list[Callable[[], None]] | None = None
        """Requests that wait for a role to change; None while none wait."""
        self.is_leaving = False
        """Whether it hands over before it stops, and takes no role any more."""

    def _stream_host(self) -> StreamHost:
        return StreamHost(
            now_ms=lambda: int(self.world.now),
            later=lambda seconds, callback: self.after(seconds * 1_000, callback),
            soon=lambda callback: self.after(0, callback),
            nonce=lambda: bytes(NONCE_BYTES),
            chance=self.world.chance.random,
            log=WorldLog(self.world, self.name),
        )

    # -- life ---------------------------------------------------------------------------------------------------------

    def deliver(self, function: Callable[..., None], *arguments: Any) -> None:
        """Something reaches the process, whose machine may lose its power by it."""
        with self._under_power():
            super().deliver(function, *arguments)

    @contextmanager
    def _under_power(self) -> Iterator[None]:
        try:
            yield
        except PowerLost:
            self.world.tell(self.name, "loses its power at work")
            self.crash(power=True)
            self.world.after(self.cluster.pace.tick_ms * 5 * self.world.chance.random(), self._power_returns)

    def _power_returns(self) -> None:
        if not self.is_up:
            self.start()

    def start(self) -> None:
        """Recover the log and register."""
        with self._under_power():
            self._start()

    def _start(self) -> None:
        super().start()
        self._clear()
        self.pauses = self._pause_watch()
        self.recover()
        self.world.tell(self.name, f"starts, log {self.log.begin}..{self.log.end} {list(self.log.epochs)}")
        self.roles.feed(Start())
        self._tick()

    def recover(self) -> None:
        """Find what the disk has."""
        self.log.recover()
        if self._damaged_at is not None and self._damaged_at >= self.log.end:
            self._damaged_at = None  # a power cut took what was damaged, and other records come there

    def lag_ms(self) -> float:
        """How long it takes until what was decided is begun: there is something else to do."""
        if self.slow_ms is not None:
            return self.slow_ms
        chance = self.world.chance
        return self.cluster.pace.tick_ms * chance.random() * (0.5 if chance.random() < 0.1 else 0.01)

    def opening_ms(self) -> float:
        """How long it takes to open the log."""
        if self.slow_ms is not None:
            return self.slow_ms
        chance = self.world.chance
        return self.cluster.pace.tick_ms * chance.random() * (2.0 if chance.random() < 0.2 else 0.4)

    def crash(self, *, power: bool, mood: str = "") -> None:
        """Stop at once, with or without the machine."""
        if not self.is_up:
            return
        if power:
            self.log.power_cut(mood)
            if self.cluster.build.is_async:
                self.safe = False
        else:
            self.log.kill()
        self.stop()
        self._clear()
        self.hang_up()

    def hang_up(self) -> None:
        """End all connections."""
        for stream in self.cluster.network.streams:
            for end in (0, 1):
                if stream.nodes[end] is self and stream.open[end]:
                    stream.died(end)

    def stop_in_order(self) -> None:
        """SIGTERM: a master with another one in sync hands over first, then the process ends."""
        if self.is_leaving:
            return
        self.is_leaving, leading = True, self.serving
        if leading is None or not leading.term.has_successor():
            self.end(self.boot)
        else:
            leading.hand_over()

    @property
    def leads(self) -> bool:
        """Whether it is the master, as far as it knows."""
        return self.leading is not None

    def seek(self, _successor: int | None) -> None:
        """Have the controllers choose another master."""
        self.asking.leave()

    def end(self, boot: int) -> None:
        """Give the role up, then the process ends."""
        if self.is_up and boot == self.boot:
            self.roles.leave(self.saved_epoch)

    def left(self) -> None:
        """The role is given up, and everything closed."""
        self.world.tell(self.name, "stops in order")
        self.crash(power=False)

    def pause(self) -> None:
        """Time passes, and the loop makes no turn."""
        if not self.is_paused:
            self._stands_since = self.world.now
        super().pause()

    def go_on(self) -> None:
        """Handles now what arrived and became due during the pause, without knowing its length."""
        if self.is_paused and self.world.now - self._stands_since > self.cluster.pace.pause_limit_ms + 1:
            self.came_back = self.world.now
        with self._under_power():
            super().go_on()

    def _tick(self) -> None:
        self._ticks += 1
        self.pauses.may_answer()
        self.asking.step()
        if self._ticks % BEAT_TICKS == 0:
            self.beat()
        self.streams.tick()
        self.keep_up()
        self.after(self.cluster.pace.tick_ms, self._tick)

    def keep_up(self) -> None:
        """The upkeep of the log."""
        if self.cluster.build.is_stored and self.log.finds_damage():
            self._found_damage(self.opened)

    # -- the controllers ----------------------------------------------------------------------------------------------

    def registration(self) -> RegisterReplica:
        """What the controllers are told of this start."""
        safe = self.safe or "unclean-stays" in self.flags
        return RegisterReplica(
            CLUSTER,
            GROUP,
            self.ident,
            self.name,
            self.name,
            f"boot-{self.boot}-{self.losses}",
            self.log.epochs.last,
            safe,
        )

    def standing(self) -> Live:
        """What a heartbeat tells."""
        return Live(self.log.epochs.last, self.log.end, 100 + self.ident)

    def registered(self) -> None:
        """The controllers know this start of the broker."""
        self.is_fenced, self.safe = False, True

    def beat(self) -> None:
        """A heartbeat to all controllers."""
        if self.asking.steps.may_beat:
            live, channel = self.standing(), (self.ident, self.boot)
            for node in self.cluster.controllers.nodes:
                self.cluster.network.send(
                    self.name, node, self.cluster.controllers.heartbeat, node, self, live, channel
                )

    def beaten(self, channel: object, code: int) -> None:
        """The leading controller has refused a heartbeat."""
        if channel == (self.ident, self.boot):
            self.asking.beaten(code)

    def learn(self, view: GroupView) -> None:
        """A push of the controllers."""
        self.asking.report(known(view))

    def superseded(self, _epoch: int) -> None:
        """A peer knows of a newer epoch."""
        self.asking.again()

    # -- roles --------------------------------------------------------------------------------------------------------

    def save_epoch(self, epoch: int) -> None:
        """The newest known epoch is on the disk."""
        self.saved_epoch = epoch

    def majority(self, _epoch: int) -> Majority | None:
        """Who confirms what the master of an epoch writes, where the controllers do not say it."""
        return None

    @property
    def leading(self) -> Leading | None:
        """Its term, while it is the master."""
        return self.roles.actions.master

    @property
    def following(self) -> Following | None:
        """What copies a master's log."""
        return self.roles.actions.client

    def lead(self, view: KnownGroup) -> Leading:
        """Make what leads."""
        log, cluster = self.log, self.cluster
        self.world.tell(self.name, f"is master of epoch {view.epoch} from {log.end} on, in sync {sorted(view.members)}")
        build = cluster.build
        rules = TermRules(CLUSTER, GROUP, cluster.acknowledge, cluster.pace.settings, build.leader, build.members)
        assert self.opened is not None
        core = rules.begin(self.ident, view, self.opened, int(self.world.now), self.majority(view.epoch))
        if "promoted-shows-all" in self.flags:
            core.confirm_position = log.end
        return Leading(self, core)

    def fenced_below(self, epoch: int) -> int:
        """The epoch that a replica tells the master of `epoch`."""
        return epoch

    def follows(self, master: Broker) -> bool:
        """Whether the master's stream continues here, in its present epoch."""
        following, leading = self.following, master.leading
        return following is not None and leading is not None and following.continues(leading.core.epoch)

    def accept(self, stream: Stream) -> Any:
        """Accept a replica's connection."""
        return ReplicaSide(self, stream)

    # -- readers ------------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Requests of clients wait until `release`."""
        self._suspended = []

    def holds(self, request: Callable[[], None]) -> bool:
        """Whether a request waits now."""
        if self._suspended is not None:
            self._suspended.append(request)
        return self._suspended is not None

    def release(self) -> None:
        """Carry out what waits, or refuse it, as the role is now."""
        held, self._suspended = self._suspended, None
        for request in held or ():
            request()

    def read(self, wait_ms: float, answered: Callable[[int | None], None]) -> None:
        """Answer with the end of the visible messages, at once or after a wait for more; None: ask another broker."""
        leading = self.serving
        if leading is None or not leading.may_answer():
            answered(None)
        elif wait_ms:
            self.after(wait_ms, self._wait_over, leading, answered)
        else:
            self._tell(answered)

    def _wait_over(self, leading: Leading, answered: Callable[[int | None], None]) -> None:
        if self.serving is not leading or not leading.may_answer():
            answered(None)
        else:
            self._tell(answered)

    def _tell(self, answered: Callable[[int | None], None]) -> None:
        self.cluster.judge.answers(self, self.log.confirm)
        answered(self.log.confirm)

    # -- the disk -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Request a flush of what was written; a store does that itself."""
        if self.cluster.build.is_stored:
            return
        if not self._flushing and self.log.flushed < self.log.end:
            self._flushing = True
            delay = self.flush_ms * (0.3 + self.world.chance.random())
            self.after(delay, self._flushed, self.log.end, self._generation)

    def _flushed(self, end: int, generation: int) -> None:
        self._flushing = False
        if generation == self._generation:
            self.log.flush(end)
            if self.opened is not None:
                self.opened.flushed()
            self.cluster.judge.shown(self)
        self.flush()

    def confirmed(self) -> None:
        """More of the log may be confirmed: answer, show."""
        if self.leading is not None:
            self.leading.confirmed()
        self.cluster.judge.shown(self)

    @property
    def damage(self) -> int | None:
        """Where the damage of its log begins, until that part is given up; nothing is read from there on."""
        at = self._damaged_at
        return at if at is not None and self.log.begin <= at < self.log.end else None

    def damaged(self, position: int) -> None:
        """The disk forgets something; a replica finds that out by itself, a master when it checks."""
        self._damaged_at = position
        if self.cluster.build.is_stored:
            self.log.rot(position)
            return
        if self.opened is not None and self.roles.node.epoch is None:
            self.after(self.lag_ms(), self._found_damage, self.opened)

    def _found_damage(self, opened: OpenedLog) -> None:
        if self.opened is opened and self.knows_damage():
            self.roles.feed(DamageFound())

    def knows_damage(self) -> bool:
        """Whether its log is damaged, and it has found that out; the model's always has."""
        if self.cluster.build.is_stored:
            return bool(self.opened is not None and self.opened.quarantined)
        return self.damage is not None

    def cut_away(self, position: int) -> None:
        """The log is cut: a flush in progress does not cover what is written now."""
        self._generation += 1
        if self._damaged_at is not None and position <= self._damaged_at:
            self._damaged_at = None

    def lost_something(self) -> None:
        """The log is damaged: to the controllers this is a new start that lost something."""
        self.world.tell(self.name, f"has lost what is behind {self.damage}")
        self.safe = False
        self.losses += 1
        self.roles.drop()
        self.asking.lost_something()
