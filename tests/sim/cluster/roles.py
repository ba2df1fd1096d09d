"""A broker's changes of role: the shipped `GroupNode` and `RoleActions`, on the model log and the network.

What is decided is done a moment later, as a task of the product's loop does it, and what takes its time there takes
its time here: meanwhile reports and orders arrive, the process may be paused, killed or stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.roles.group_node import (
    ClosePorts,
    EndRole,
    Event,
    LogOpened,
    NodePhase,
    OpenLog,
    RoleEnded,
    RoleOrders,
)
from broker.roles.role_queue import RoleActions
from broker.roles.steps import KnownGroup
from tests.sim.cluster.following import Following
from tests.sim.cluster.world import Violation

if TYPE_CHECKING:
    from tests.sim.cluster.broker import Broker
    from tests.sim.cluster.leading import Leading


class SimulatedHost:
    """A broker's log, clients and controllers, for its `RoleActions`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.fenced_below, self.lead = broker.fenced_below, broker.lead
        self.suspend, self.lost_something = broker.hold, broker.lost_something

    def follow(self, view: KnownGroup, epoch: int) -> Following:
        """Over the network."""
        return Following(self._broker, view.ha_address, epoch)

    def serve(self, _epoch: int) -> None:
        """Clients that wait are answered."""
        self._broker.serving = self._broker.leading
        self._broker.release()

    def announce(self) -> None:
        """Clients find it by themselves."""
        self._broker.cluster.judge.announced(self._broker)

    def give_up(self, _address: str, _epoch: int) -> None:
        """Clients that wait learn nothing."""
        if self._broker.leading is not None:
            self._broker.leading.give_up()
        self._broker.log.confirm_no_more()

    def refuse(self, _address: str, _epoch: int) -> None:
        """Clients ask another broker."""
        self._broker.serving = None
        self._broker.release()

    def close_log(self) -> None:
        """Nothing uses it any more."""
        if self._broker.opened is not None:
            self._broker.opened.close()
            self._broker.opened = None

    def damaged_at(self) -> int | None:
        """Where its first damage begins."""
        opened = self._broker.opened
        return opened.replica.sound_end if opened.quarantined else None

    def unreachable(self, address: str) -> None:
        """Everybody tells where it is."""
        raise Violation("every master can be followed", f"{self._broker.name}: {address}")

    def finish(self) -> None:
        """There is nothing else to do for a role."""


class Roles(RoleOrders):
    """From one start of a broker to its end."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.cluster.build.node(), self._go_on_soon, broker.beat)
        self._broker = broker
        self.actions: RoleActions[Following, Leading] = broker.cluster.build.actions(
            SimulatedHost(broker), broker.streams
        )
        self._turn: object | None = None
        """What goes on later; None while nothing is to be done."""

    def _go_on_soon(self) -> None:
        if self.todo and self._turn is None:
            self._later(self._broker.lag_ms())

    def leave(self, epoch: int) -> None:
        """The process is to stop: what is under way is given up."""
        self._turn = None
        self.give_up("", epoch)

    def _later(self, delay_ms: float, event: Event | None = None) -> None:
        self._turn = turn = object()
        self._broker.after(delay_ms, self._go_on, turn, event)

    def _go_on(self, turn: object, event: Event | None) -> None:
        if turn is not self._turn:
            return
        if isinstance(event, LogOpened):
            event = self._opened()
        if event is not None:
            self.todo.extend(self.node.step(event))
        while self.todo:
            action = self.take()
            self.actions.carry_out(action)
            match action:
                case EndRole():
                    self._later(self._broker.lag_ms(), RoleEnded())
                    return
                case OpenLog():
                    self._later(self._broker.opening_ms(), LogOpened())
                    return
                case ClosePorts():
                    self._broker.hang_up()
        self._turn = None
        if self.node.phase is NodePhase.STOPPED:
            self._broker.left()

    def _opened(self) -> LogOpened:
        broker, epoch = self._broker, self.node.epoch
        if epoch is not None:
            broker.cluster.judge.begins_epoch(broker.ident, epoch, broker.name)
        broker.opened = broker.open_log(epoch or 0)
        return LogOpened(is_damaged=broker.knows_damage())
