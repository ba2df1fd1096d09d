"""Three controllers around the real state machine of `controller/replicas`, their agreement modelled as one register.

What is modelled and not run is consensus: a command takes effect once, at one moment, if the leader that took it still
reaches a majority then; if not it may be lost or take effect later, and no client learns which. Heartbeats are soft
state of the leading controller and are lost with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from broker.roles.steps import Ask
from controller.replicas.group import (
    AlterSyncStateSet,
    ApplyBrokerId,
    Command,
    ElectMaster,
    GroupView,
    Live,
    LiveTable,
    Outcome,
    RegisterReplica,
)
from controller.replicas.machine import ReplicaMachine, succession
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from tests.sim.cluster.network import Network
from tests.sim.cluster.pace import Pace
from tests.sim.cluster.world import Node, World

if TYPE_CHECKING:
    from tests.sim.cluster.broker import Broker

GROUP, CLUSTER = "g", "c"
NOT_LEADER = -1
NOT_REGISTERED = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


@dataclass(frozen=True, slots=True)
class Leave:
    """1002 of a master that is about to stop."""

    broker: int


Answer = Callable[[int, GroupView | None, str], None]
"""Takes a response code, or NOT_LEADER, the group, and the name of the controller that leads."""


class Controllers:
    """The three of them, and what they agreed on."""

    def __init__(self, world: World, network: Network, brokers: int, flags: frozenset[str], pace: Pace) -> None:
        self.world, self.network, self.flags, self.pace = world, network, flags, pace
        self.machine = ReplicaMachine()
        self.nodes = [Node(world, f"c{number}") for number in (1, 2, 3)]
        self.leader: Node | None = None
        self.live = LiveTable(self.pace.live_ms)
        self.members: list[Node] = []
        self.take_view: Callable[[Node, GroupView], None] = lambda _node, _view: None
        self.on_change: Callable[[GroupView], None] = lambda _view: None
        self._seen: set[Any] = set()
        self._old_view: GroupView | None = None
        self._leaderless_ms = 0.0
        self._named: dict[Node, str] = {}
        """Who leads as each of them knows, perhaps no more."""
        for node in self.nodes:
            node.start()
        for broker in range(1, brokers + 1):
            self.machine.apply(ApplyBrokerId(CLUSTER, GROUP, broker, f"code-{broker}"))
        world.after(0, self._scan)

    def view(self) -> GroupView:
        """The group as it is now, read without a network."""
        return self.machine.groups[GROUP].view()

    # -- agreement ----------------------------------------------------------------------------------------------------

    def _leads(self, node: Node) -> bool:
        reached = 1 + sum(self._reaches(node, other) for other in self.nodes if other is not node)
        return self._runs(node) and reached >= 2

    def _reaches(self, node: Node, other: Node) -> bool:
        cut = self.network.cut
        return (node.name, other.name) not in cut and (other.name, node.name) not in cut and self._runs(other)

    @staticmethod
    def _runs(node: Node) -> bool:
        return node.is_up and not node.is_paused

    def _scan(self) -> None:
        self.world.after(self.pace.scan_ms, self._scan)
        if self.leader is not None and not self._leads(self.leader):
            self.leader = None
            self._leaderless_ms = self.world.now
        if self.leader is None:
            able = [node for node in self.nodes if self._leads(node)]
            if able and self.world.now - self._leaderless_ms >= self.pace.leaderless_ms * self.world.chance.random():
                self._lead(self.world.chance.choice(able))
        if self.leader is not None:
            dead = self.live.tick(int(self.world.now))
            group = self.machine.groups[GROUP]
            if dead or group.master is None or group.master not in self.live.alive(GROUP):
                self._elect(None)

    def _lead(self, node: Node) -> None:
        self.leader = node
        self.live = LiveTable(self.pace.live_ms)
        group = self.machine.groups[GROUP]
        for broker in group.replicas:
            self.live.presume((GROUP, broker), int(self.world.now))
        self._named |= {each: node.name for each in self.nodes if self._reaches(node, each)}
        self.world.tell(node.name, "leads the controllers")

    def _commit(self, leader: Node, make: Callable[[], Command], done: Callable[[Outcome], None] | None) -> None:
        self.world.after(0.5 + 2 * self.world.chance.random(), self._committed, leader, make, done)

    def _committed(self, leader: Node, make: Callable[[], Command], done: Callable[[Outcome], None] | None) -> None:
        if self.leader is leader and self._leads(leader):
            outcome = self._apply(make())
            if done is not None:
                done(outcome)
        elif self.world.chance.random() < 0.5:
            # The next leader finds it in its log: it takes effect, but no client gets an answer.
            self.world.after(500 * self.world.chance.random(), self._late, make)

    def _late(self, make: Callable[[], Command]) -> None:
        if self.leader is not None:
            self._apply(make())

    def _apply(self, command: Command) -> Outcome:
        before = self.machine.groups[GROUP]
        outcome = self.machine.apply(command)
        after = self.machine.groups[GROUP]
        if "forgotten-set" in self.flags and after.master is None and after.master_epoch:
            forgotten = replace(after, in_sync=tuple(sorted(after.replicas)))
            self.machine.groups = {**self.machine.groups, GROUP: forgotten}
        if before is not after:
            self._old_view = before.view()
            view = self.view()
            self.world.tell("ctl", f"{type(command).__name__}: {told(view)}")
            self.on_change(view)
            if outcome.changed:
                self._push(view)
        return outcome

    def _push(self, view: GroupView) -> None:
        if self.leader is not None:
            for node in self.members:
                self.network.send(self.leader.name, node, self.take_view, node, view)

    def _elect(self, broker: int | None) -> None:
        if self.leader is not None:
            self._commit(self.leader, lambda: self._election(broker), None)

    def _election(self, broker: int | None) -> ElectMaster:
        unclean = "unclean-election" in self.flags
        live = self.live.candidates(GROUP)
        for each in self.live.alive(GROUP):
            if each == self.machine.groups[GROUP].master:
                live.setdefault(each, Live())
        return ElectMaster(CLUSTER, GROUP, live, broker, unclean=unclean)

    def _succession(self, leaving: int) -> ElectMaster:
        live = self.live.candidates(GROUP)
        if "hands-over-to-anybody" in self.flags:
            live.pop(leaving, None)
            return ElectMaster(CLUSTER, GROUP, {max(live, default=leaving): Live()}, unclean=True)
        return succession(self.machine.groups[GROUP], CLUSTER, GROUP, leaving, live)

    def _leave(self, node: Node, leaving: int, reply: Callable[[int, GroupView | None], None]) -> None:
        try:
            command = self._succession(leaving)
        except Refused as refused:
            reply(refused.code, self.view())
        else:
            self._commit(node, lambda: command, lambda done: reply(done.code, done.view))

    # -- requests -----------------------------------------------------------------------------------------------------

    def heartbeat(self, node: Node, broker: Broker, live: Live, channel: object) -> None:
        """904; of the answers the leader's refusal alone is sent, because no other one says anything."""
        if node is self.leader and not self._beat(broker, live, channel):
            self.network.send(node.name, broker, broker.beaten, channel, NOT_REGISTERED)

    def _beat(self, broker: Broker, live: Live, channel: object) -> bool:
        """Whether the broker is registered, so that its heartbeat counts."""
        replica = self.machine.groups[GROUP].replicas.get(broker.ident)
        if replica is None or replica.address != broker.name:
            return False
        self.live.beat((GROUP, broker.ident), int(self.world.now), live, channel=channel)
        return True

    def request(
        self, node: Node, asks: Broker, what: Command | Leave | Live | Ask | None, answer: Answer, number: Any
    ) -> None:
        """Any other request of a broker; None asks for the group. `number` identifies a request and its duplicate."""

        def reply(code: int, view: GroupView | None) -> None:
            named = self._named.get(node, "")
            self.network.send(node.name, asks, answer, code, view, "" if named == node.name else named)

        if node is not self.leader:
            stale = self._old_view if "stale-reads" in self.flags and what in (None, Ask.LEADER) else None
            reply(0 if stale else NOT_LEADER, stale)
            return
        if number in self._seen:
            return
        self._seen.add(number)
        if what is Ask.LEADER:
            reply(0, None)
        elif what is None:
            reply(0, self.view())
        elif isinstance(what, Live):
            reply(0 if self._beat(asks, what, number[:2]) else NOT_REGISTERED, None)
        elif isinstance(what, ElectMaster):
            self._commit(node, lambda: self._election(what.broker_id), lambda done: reply(done.code, done.view))
        elif isinstance(what, Leave):
            self._leave(node, what.broker, reply)
        elif isinstance(what, AlterSyncStateSet):
            alive = self.live.alive(GROUP)
            self._commit(node, lambda: replace(what, alive=alive), lambda done: reply(done.code, done.view))
        else:
            self._commit(node, lambda: self._registration(what), lambda done: reply(done.code, done.view))

    def _registration(self, what: Command) -> Command:
        if isinstance(what, RegisterReplica) and "reused-epoch" in self.flags:
            return replace(what, boot_id="always the same")
        return what


def told(view: GroupView) -> str:
    """A group in a few words."""
    return f"master {view.master} epoch {view.master_epoch}, in sync {list(view.in_sync)} at {view.set_epoch}"
