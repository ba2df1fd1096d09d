"""A broker towards its controllers: the shipped `ReplicaSteps` and `LeaderSearch`, whose questions go over the network.

What is written here is what carries a question to a controller and its answer back; when which question is asked, and
which controller, what an answer, a refusal or none means, and which role follows, is the product's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.roles.steps import Ask, ControllerAnswer, KnownGroup
from controller.replicas.group import ElectMaster, GroupView
from remoting.protocol.bodies.controller_body import ControllerMetadata
from remoting.transport.failures import ConnectionLost
from tests.sim.cluster.controllers import CLUSTER, GROUP, NOT_LEADER, Leave
from tests.sim.cluster.world import Node, Violation

if TYPE_CHECKING:
    from tests.sim.cluster.broker import Broker

LOST = -2
"""Stands for the code of an answer that does not come."""
POLL_TICKS = 4

Answered = Callable[[int, GroupView | None, str], None]
"""Takes a response code, NOT_LEADER or LOST, the group, and the controller that is said to lead."""


def known(view: GroupView) -> KnownGroup:
    """The group as a broker reads it out of an answer or a push."""
    return KnownGroup(
        view.master_epoch,
        view.master,
        view.master_address,
        view.master_ha_address,
        frozenset(view.in_sync),
        view.set_epoch,
    )


def understood(code: int, view: KnownGroup | None) -> ControllerAnswer:
    """An answer as the product reads it: none where no controller that leads has given it."""
    # A former leader's duplicate may have reached one that committed it and could not answer.
    if code in (LOST, NOT_LEADER):
        return ControllerAnswer(None, remark="no answer")
    return ControllerAnswer(code, view if code == 0 else None, remark="" if code == 0 else f"code {code}")


class Asking:
    """From one start of a broker to its end."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._cluster = broker, broker.cluster
        self.steps = broker.cluster.build.steps(
            broker.ident, is_applied=True, epoch=broker.saved_epoch, is_learner=broker.is_learner,
            poll_interval_ms=int(POLL_TICKS * broker.cluster.pace.tick_ms),
        )  # fmt: skip
        self._leader: Node | None = None
        """The controller that leads, as far as this broker knows."""
        nodes = list(self._cluster.controllers.nodes)
        self._broker.world.chance.shuffle(nodes)
        self._nodes: dict[str, Node] = {each.name: each for each in nodes}
        self._search = broker.cluster.build.search(list(self._nodes))
        self._request = 0

    def _now(self) -> int:
        return int(self._broker.world.now)

    # -- the network ---------------------------------------------------------------------------------------------------

    def ask(self, what: Any, answered: Answered) -> None:
        """Ask the leading controller for something; None asks for the group."""
        if self._leader is None:
            self._broker.after(0, answered, LOST, None, "")
        else:
            self._ask_at(self._leader, what, answered)

    def _ask_at(self, node: Node, what: Any, answered: Answered) -> None:
        broker, cluster, started = self._broker, self._cluster, self._broker.world.now
        self._request += 1
        number = (broker.ident, broker.boot, self._request)
        waiting = [answered]

        def arrived(code: int, view: GroupView | None, named: str = "") -> None:
            if code == NOT_LEADER and self._leader is node:
                self._leader, self._search.named = None, named
            if waiting and number[:2] == (broker.ident, broker.boot):
                if what is None and code == 0 and view is not None and "follows-older" not in broker.flags:
                    cluster.judge.read_register(started, broker.world.now, view)
                waiting.pop()(code, view, named)

        controllers = cluster.controllers
        cluster.network.send(broker.name, node, controllers.request, node, broker, what, arrived, (*number, node.name))
        broker.after(cluster.pace.answer_ms, arrived, LOST, None)

    # -- one question after the other ----------------------------------------------------------------------------------

    def step(self) -> None:
        """Ask what is due."""
        ask = self.steps.next_ask(self._now())
        if ask is None:
            return
        if ask is Ask.LEADER:
            self._search.begin()
            self._ask_who_leads()
        else:
            self.ask(self._question(ask), self._answered)

    def _question(self, ask: Ask) -> Any:
        match ask:
            case Ask.REGISTER:
                return self._broker.registration()
            case Ask.HEARTBEAT:
                return self._broker.standing()
            case Ask.ELECT:
                return ElectMaster(CLUSTER, GROUP, {}, self._broker.ident)
            case Ask.LEAVE:
                return Leave(self._broker.ident)
            case Ask.POLL:
                return None
        raise Violation("brokers here have their ids", f"{self._broker.name} asks for {ask.value}")

    def _answered(self, code: int, view: GroupView | None, _named: str) -> None:
        self._conclude(understood(code, None if view is None else known(view)))

    def _conclude(self, answer: ControllerAnswer) -> None:
        if not self.steps.concluded(answer, self._now(), self):
            self._broker.world.tell(self._broker.name, f"is refused with code {answer.code}")
        self._broker.after(max(0, self.steps.due_ms - self._now()), self.step)

    def beaten(self, code: int) -> None:
        """The leading controller has answered a heartbeat."""
        self.steps.beaten(code, self._now())
        self._broker.after(0, self.step)

    def again(self) -> None:
        """There may be another master: ask now."""
        self.steps.ask_now(self._now())
        self._broker.after(0, self.step)

    def lost_something(self) -> None:
        """What the controllers know of the log is out of date."""
        self.steps.lost_something(self._now())
        self._broker.after(0, self.step)

    def leave(self) -> None:
        """Another broker is to be the master."""
        self.steps.leave(self._now())
        self._broker.after(0, self.step)

    def _ask_who_leads(self) -> None:
        name = self._search.next()
        if name is not None:
            self._ask_at(self._nodes[name], Ask.LEADER, partial(self._said_who_leads, name))
        else:
            self._leader = self._nodes.get(self._search.leader)
            self._conclude(ControllerAnswer(None if self._leader is None else 0))

    def _said_who_leads(self, name: str, code: int, _view: GroupView | None, named: str) -> None:
        if code == LOST:
            self._search.failed(name, ConnectionLost("no answer"))
        else:
            self._search.answered(name, ControllerMetadata(GROUP, None, named, is_leader=code == 0))
        self._ask_who_leads()

    # -- what follows from the answers ---------------------------------------------------------------------------------

    def save_id(self, broker_id: int) -> None:
        """It has had one from the beginning."""
        raise Violation("brokers here have their ids", f"{self._broker.name} is offered {broker_id}")

    def save_applied(self) -> None:
        """It has had one from the beginning."""
        raise Violation("brokers here have their ids", self._broker.name)

    def save_registered(self) -> None:
        """The controllers know this start."""
        self._broker.registered()

    def report(self, view: KnownGroup) -> None:
        """Said of the group: pushed, polled or answered, perhaps late."""
        self._broker.roles.report(self.steps, view, self._broker.save_epoch)
        self._broker.after(0, self.step)

    def proved(self, view: KnownGroup, asked_ms: int) -> None:
        """The controllers have answered a question of that time."""
        self._broker.pauses.confirmed(view.epoch, view.master, asked_ms)

    def left(self, answer: ControllerAnswer) -> None:
        """The hand-over is at its end, if it is not over yet."""
        if self._broker.leading is not None:
            self._broker.leading.taken(answer.remark)
