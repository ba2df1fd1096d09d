"""A broker towards its controllers: the shipped `ReplicaSteps`, whose questions go over the simulated network.

What is written here is what carries a question to a controller and its answer back; when which one is asked, what an
answer means for the next one, and which role follows, is the product's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.roles.steps import Ask, KnownGroup, RolePhase
from controller.replicas.group import ElectMaster, GroupView
from remoting.protocol.frames.codes import ResponseCode
from tests.sim.cluster.controllers import CLUSTER, GROUP, NOT_LEADER
from tests.sim.cluster.world import Node

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
            self._find_leader()
        elif ask is Ask.REGISTER:
            asked = self._broker.registration()
            self.ask(asked, partial(self._registered, asked.boot_id))
        elif ask is Ask.HEARTBEAT:
            self.ask(self._broker.standing(), self._beaten)
        elif ask is Ask.ELECT:
            self.ask(ElectMaster(CLUSTER, GROUP, {}, self._broker.ident), self._elected)
        else:
            self._poll()

    def again(self) -> None:
        """There may be another master: ask now."""
        self.steps.ask_now(self._now())
        self._broker.after(0, self.step)

    def lost_something(self) -> None:
        """What the controllers know of the log is out of date."""
        self.steps.lost_something(self._now())
        self._broker.after(0, self.step)

    def _go_on(self) -> None:
        self._broker.after(max(0, self.steps.due_ms - self._now()), self.step)

    def _find_leader(self) -> None:
        nodes = list(self._cluster.controllers.nodes)
        self._broker.world.chance.shuffle(nodes)
        self._search(nodes)

    def _search(self, nodes: list[Node]) -> None:
        """Ask one after the other whether it leads."""
        if nodes:
            self._ask_at(nodes[0], Ask.LEADER, partial(self._found, nodes))
        else:
            self.steps.lost(self._now())
            self._go_on()

    def _found(self, nodes: list[Node], code: int, _view: GroupView | None) -> None:
        if code != 0:
            self._search(nodes[1:])
            return
        self._leader = nodes[0]
        self.steps.found_leader(self._now())
        self._go_on()

    def _is_refused(self, code: int) -> bool:
        if code in (LOST, NOT_LEADER):
            self.steps.lost(self._now())
        elif code != 0:
            self.steps.refused(self._now())
        if code != 0:
            self._go_on()
        return code != 0

    def _registered(self, boot_id: str, code: int, view: GroupView | None) -> None:
        if self._is_refused(code):
            return
        assert view is not None
        if boot_id != self._broker.registration().boot_id:
            self.steps.refused(self._now())  # more was lost meanwhile: once more
            self._go_on()
            return
        self.steps.registered(self._now())
        self._broker.registered()
        self.take(view)
        self._go_on()

    def _beaten(self, code: int, _view: GroupView | None) -> None:
        if not self._is_refused(code):
            self.steps.beaten(self._now())
            self._go_on()

    def _elected(self, code: int, _view: GroupView | None) -> None:
        if code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST or not self._is_refused(code):
            self._poll()

    def _poll(self) -> None:
        self.ask(None, partial(self._polled, self._now()))

    def _polled(self, asked_ms: int, code: int, view: GroupView | None) -> None:
        if self._is_refused(code):
            return
        assert view is not None
        self.take(view)
        self._broker.pauses.confirmed(view.master_epoch, view.master, asked_ms)
        self.steps.answered(self._now())
        self._go_on()

    # -- what the answers say ------------------------------------------------------------------------------------------

    def take(self, view: GroupView) -> None:
        """A report of the group: pushed, polled or answered, perhaps late."""
        self._broker.roles.report(self.steps, known(view), self._broker.save_epoch)
        if view.master is None and self.steps.stage is RolePhase.RUNNING:
            self.again()
