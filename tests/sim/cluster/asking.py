"""A broker towards its controllers: the shipped `ReplicaSteps`, whose questions go over the simulated network.

What is written here is what carries a question to a controller and its answer back; when which one is asked, what an
answer, a refusal or none means, and which role follows, is the product's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.roles.steps import Ask, ControllerAnswer, KnownGroup
from controller.replicas.group import ElectMaster, GroupView
from tests.sim.cluster.controllers import CLUSTER, GROUP, NOT_LEADER
from tests.sim.cluster.world import Node, Violation

if TYPE_CHECKING:
    from tests.sim.cluster.broker import Broker

LOST = -2
"""Stands for the code of an answer that does not come."""
POLL_TICKS = 4

Answered = Callable[[int, GroupView | None], None]
"""Takes a response code, NOT_LEADER or LOST, and the group."""


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
        self._request = 0

    def _now(self) -> int:
        return int(self._broker.world.now)

    # -- the network ---------------------------------------------------------------------------------------------------

    def ask(self, what: Any, answered: Answered) -> None:
        """Ask the leading controller for something; None asks for the group."""
        if self._leader is None:
            self._broker.after(0, answered, LOST, None)
        else:
            self._ask_at(self._leader, what, answered)

    def _ask_at(self, node: Node, what: Any, answered: Answered) -> None:
        broker, cluster, started = self._broker, self._cluster, self._broker.world.now
        self._request += 1
        number = (broker.ident, broker.boot, self._request)
        waiting = [answered]

        def arrived(code: int, view: GroupView | None) -> None:
            if code == NOT_LEADER and self._leader is node:
                self._leader = None
            if waiting and number[:2] == (broker.ident, broker.boot):
                if what is None and code == 0 and view is not None and "follows-older" not in broker.flags:
                    cluster.judge.read_register(started, broker.world.now, view)
                waiting.pop()(code, view)

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
            nodes = list(self._cluster.controllers.nodes)
            self._broker.world.chance.shuffle(nodes)
            self._search(nodes)
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
            case Ask.POLL:
                return None
        raise Violation("brokers here have their ids", f"{self._broker.name} asks for {ask.value}")

    def _answered(self, code: int, view: GroupView | None) -> None:
        is_answer = code not in (LOST, NOT_LEADER)
        self._conclude(ControllerAnswer(code if is_answer else None, None if view is None else known(view)))

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

    def _search(self, nodes: list[Node]) -> None:
        """Ask one after the other whether it leads."""
        if nodes:
            self._ask_at(nodes[0], Ask.LEADER, partial(self._found, nodes))
        else:
            self._conclude(ControllerAnswer(None))

    def _found(self, nodes: list[Node], code: int, _view: GroupView | None) -> None:
        if code != 0:
            self._search(nodes[1:])
        else:
            self._leader = nodes[0]
            self._conclude(ControllerAnswer(0))

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
