"""A broker's changes of role: the shipped `GroupNode`, whose actions are carried out on the model log and the network.

What is decided is done a moment later, as a task of the product's loop does it, and what takes its time there takes
its time here: meanwhile reports and orders arrive, the process may be paused, killed or stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.roles.group_node import (
    Announce,
    Begin,
    CloseLog,
    ClosePorts,
    EndRole,
    Event,
    Expect,
    FenceOff,
    Finish,
    FollowMaster,
    Lead,
    Learn,
    LogOpened,
    NodePhase,
    OpenLog,
    Refuse,
    ReportLoss,
    RoleEnded,
    RoleOrders,
    Serve,
    Suspend,
    Unfollow,
)
from tests.sim.cluster.world import Violation

if TYPE_CHECKING:
    from tests.sim.cluster.broker import Broker


class Roles(RoleOrders):
    """From one start of a broker to its end."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.cluster.build.node(), self._go_on_soon)
        self._broker = broker
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
            action = self.todo.popleft()
            if isinstance(action, (EndRole, OpenLog)):
                self._begin(action)
                return
            self._do(action)
        self._turn = None

    def _begin(self, action: EndRole | OpenLog) -> None:
        """Begin what takes its time."""
        broker = self._broker
        if isinstance(action, OpenLog):
            if broker.opened is not None:
                raise Violation("a log is open once", f"{broker.name}: {action}")
            self._later(broker.opening_ms(), LogOpened())
            return
        if broker.following is not None:
            broker.following.close(good_bye=action.good_bye)
            broker.following = None
        if broker.leading is not None:
            broker.world.tell(broker.name, f"resigns from epoch {broker.leading.core.epoch}")
            broker.leading.close()
            broker.leading = None
            broker.log.confirm_no_more()
        broker.streams.step_down("this broker is not the master")
        self._later(broker.lag_ms(), RoleEnded())

    def _opened(self) -> LogOpened:
        broker, epoch = self._broker, self.node.epoch
        if epoch is not None:
            broker.cluster.judge.begins_epoch(broker.ident, epoch, broker.name)
        broker.opened = broker.open_log(epoch or 0)
        return LogOpened(is_damaged=epoch is None and broker.knows_damage())

    def _do(self, action: Any) -> None:
        broker = self._broker
        match action:
            case Begin() | Finish():
                broker.beat()
            case Refuse():
                if broker.serving is not None:
                    broker.serving.give_up()
                broker.serving = None
                broker.release()
            case Suspend():
                broker.hold()
            case Lead(view, former):
                broker.lead(view, former)
            case Serve():
                broker.serving = broker.leading
                broker.release()
            case Announce():
                broker.cluster.judge.announced(broker)
            case Learn(view):
                assert broker.leading is not None
                broker.leading.term.learn(view)
            case CloseLog():
                self._close()
            case _:
                self._replicate(action)

    def _replicate(self, action: Any) -> None:
        """What a change of role means for connections to other brokers, and for what is said of the log."""
        broker = self._broker
        match action:
            case Expect():
                broker.streams.expect()
            case FollowMaster(view):
                assert view.master is not None
                broker.follow(view.master, view.epoch)
            case FenceOff(epoch):
                if broker.following is not None:
                    broker.following.move(broker.following.master, epoch)
            case Unfollow():
                if broker.following is not None:
                    broker.following.close(good_bye=False)
                    broker.following = None
            case ReportLoss():
                broker.lost_something()
            case ClosePorts():
                broker.hang_up()
            case _:
                raise Violation("every action is carried out", f"{broker.name}: {action}")

    def _close(self) -> None:
        broker = self._broker
        if broker.opened is not None:
            broker.opened.close()
            broker.opened = None
        if self.node.phase is NodePhase.STOPPED:
            broker.left()
