"""Carries out what a member's `GroupNode` decides, one action after the other.

    GroupNode --> RoleOrders --> RoleActions --> RoleHost      log, clients, controllers
                                            '--> what follows and what leads now, the streams of replicas

`RoleActions` is pure: the world is its `RoleHost`, so the simulation runs it on simulated disks. `RoleQueue` is a task
of the loop. An action that fails ends the broker: its log may be neither open nor closed, and a restart finds out.
Invariants: one action at a time, in the order in which they were decided; the log is open once;
nothing that is damaged is given up before the controllers know of it. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from broker.replication.log_following import LogFollowing
from broker.replication.replica_streams import ReplicaStreams
from broker.roles.group_node import (
    Action,
    Announce,
    Begin,
    Broken,
    CloseLog,
    EndRole,
    Event,
    Expect,
    FenceOff,
    Finish,
    FollowMaster,
    GroupNode,
    Lead,
    Learn,
    MasterUnreachable,
    OpenLog,
    Refuse,
    ReportLoss,
    RoleOrders,
    Serve,
    Start,
    Suspend,
    Unfollow,
)
from broker.roles.steps import KnownGroup
from remoting import clock


class LogState(Protocol):
    """How the log stands, for heartbeats and elections."""

    @property
    def epoch(self) -> int:
        """The newest epoch of its records."""

    @property
    def end(self) -> int:
        """Position behind the last record, in bytes."""

    @property
    def confirm(self) -> int:
        """Confirm position, in bytes."""


class RoleExecutor(Protocol):
    """Who carries actions out."""

    def log_state(self) -> LogState:
        """How the log stands now."""
        ...

    async def carry_out(self, action: Action) -> Event | None:
        """Do it; what came of it, where the node waits for that."""
        ...


class CopyingBroker(Protocol):
    """What copies a master's log."""

    following: LogFollowing


class LeadingBroker(Protocol):
    """A master in one epoch."""

    def begin(self, former: int | None) -> None:
        """Serve replicas; `former` was the master before."""

    def learn(self, view: KnownGroup) -> None:
        """The controllers have committed a set."""

    def end(self) -> None:
        """Confirm nothing more."""


ClientT = TypeVar("ClientT", bound=CopyingBroker)
MasterT = TypeVar("MasterT", bound=LeadingBroker)
ClientT_co = TypeVar("ClientT_co", bound=CopyingBroker, covariant=True)
MasterT_co = TypeVar("MasterT_co", bound=LeadingBroker, covariant=True)


class RoleHost(Protocol[ClientT_co, MasterT_co]):
    """A broker's log, clients and controllers; each call does one thing, at once."""

    def follow(self, view: KnownGroup, epoch: int) -> ClientT_co:
        """Begin to copy this master's log, and tell it this epoch."""
        ...

    def fenced_below(self, epoch: int) -> int:
        """The epoch that a replica tells the master of `epoch`: a later one if it has voted since."""
        ...

    def lead(self, view: KnownGroup) -> MasterT_co:
        """Make what leads in an epoch, and all that will answer clients."""
        ...

    def serve(self, epoch: int) -> None:
        """Answer clients as the master."""

    def announce(self) -> None:
        """Tell everybody where the master is."""

    def suspend(self) -> None:
        """Let requests wait until it serves or refuses."""

    def give_up(self, address: str, epoch: int) -> None:
        """As the master: what waits for a confirmation has an unknown outcome; the arguments are those of `Refuse`."""

    def refuse(self, address: str, epoch: int) -> None:
        """Answer nothing as a master."""

    def close_log(self) -> None:
        """Close the log, if it could be opened."""

    def damaged_at(self) -> int | None:
        """Where the first damage of the open log begins that is known; None while it is sound."""

    def lost_something(self) -> None:
        """Tell the controllers that the log has lost something."""

    def unreachable(self, address: str) -> None:
        """The master tells no address for replicas."""

    def finish(self) -> None:
        """The role is taken."""


class RoleActions(Generic[ClientT, MasterT]):
    """What a broker has for its present role, and what each action does with it.

    Of `EndRole`, `OpenLog`, `Unfollow` and `ClosePorts` only what is done at once; whoever carries out the rest, which
    takes its time, tells the node.
    """

    def __init__(self, host: RoleHost[ClientT, MasterT], streams: ReplicaStreams) -> None:
        self.client: ClientT | None = None
        """What copies a master's log; None where none is followed."""
        self.master: MasterT | None = None
        """What leads; None while this broker does not."""
        self._host, self._streams = host, streams
        self._is_open = False
        self._reported_at: int | None = None
        """Where the damage begins that the controllers were told of, and that nobody gives up yet."""

    def carry_out(self, action: Action) -> None:
        """Do what the node decided, with what there is for the role."""
        host = self._host
        match action:
            case Refuse(address, epoch):
                if self.master is not None:
                    host.give_up(address, epoch)
                host.refuse(address, epoch)
            case Suspend():
                host.suspend()
            case Expect():
                self._streams.expect()
            case EndRole(good_bye):
                self._end(good_bye=good_bye)
            case OpenLog():
                assert not self._is_open, "a log is open once"
                self._is_open = True
            case CloseLog():
                self._is_open = False
                host.close_log()
            case Lead(view, former):
                self.master = master = host.lead(view)
                master.begin(former)
            case _:
                self._replicate(action)

    def _replicate(self, action: Action) -> None:
        host = self._host
        match action:
            case FollowMaster(view):
                self._follow(view)
            case FenceOff(epoch):
                self._fence(epoch)
            case Unfollow():
                self._unfollow(good_bye=False)
            case Learn(view):
                assert self.master is not None
                self.master.learn(view)
            case ReportLoss():
                self._report_loss()
            case MasterUnreachable(address):
                host.unreachable(address)
            case Serve(epoch):
                host.serve(epoch)
            case Announce():
                host.announce()
            case Finish():
                host.finish()

    def _end(self, *, good_bye: bool) -> None:
        self._unfollow(good_bye=good_bye)
        master, self.master = self.master, None
        if master is not None:
            master.end()
        self._streams.step_down("this broker is not the master")

    def _follow(self, view: KnownGroup) -> None:
        epoch = self._host.fenced_below(view.epoch)
        if self.client is not None:
            self.client.following.move(view.ha_address, epoch)
            return
        damaged_at = self._host.damaged_at()
        if damaged_at is not None and (self._reported_at is None or damaged_at < self._reported_at):
            self._report_loss()  # a read has met it: what is copied next gives it up, so it is to be known before
            return
        self._reported_at = None
        self.client = self._host.follow(view, epoch)

    def _report_loss(self) -> None:
        self._reported_at = self._host.damaged_at()
        self._host.lost_something()

    def _fence(self, epoch: int) -> None:
        if self.client is not None:
            self.client.following.fence(epoch)

    def _unfollow(self, *, good_bye: bool) -> None:
        client, self.client = self.client, None
        if client is not None:
            client.following.stop(good_bye=good_bye)


class RoleQueue:
    """What is to be done for the roles of one member, as a task of the loop."""

    def __init__(
        self, member: RoleExecutor, beat: Callable[[], None], failed: Callable[[Exception], None], log: Any
    ) -> None:
        """`beat` is called before and after each change of role; `failed` gets the error of an action."""
        self._changed = asyncio.Event()
        self._orders = orders = RoleOrders(GroupNode(), self._changed.set, beat)
        self.node, self.feed, self.drop, self.report = orders.node, orders.feed, orders.drop, orders.report
        self.pause, self.resume = orders.pause, orders.resume
        self._member, self._failed, self._log = member, failed, log
        self._began_ms = 0

    async def start(self) -> None:
        """Open the log. Raises StoreError, OSError."""
        self.feed(Start())
        await self._carry_out()

    async def run(self) -> None:
        """Carry out what is decided until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._carry_out()
            except Exception as error:  # noqa: BLE001 - after any error this broker's role is unknown
                self.feed(Broken())
                self._log.error("role_not_taken", exc_info=error)
                self._failed(error)
                return

    async def stop(self, address: str, epoch: int) -> None:
        """End the role and close everything, `run` having been cancelled; the arguments are those of `Stop`."""
        self._orders.give_up(address, epoch)
        await self._carry_out()

    async def _carry_out(self) -> None:
        while self._orders.todo:
            event = await self._done(self._orders.take())
            if event is not None:
                self._orders.todo.extend(self.node.step(event))

    async def _done(self, action: Action) -> Event | None:
        if isinstance(action, Begin):
            role, self._began_ms = action.role, _now_ms()
            self._log.info(
                "role_taken", role="master" if role.is_master else "fenced" if role.is_fenced else "replica",
                epoch=role.view.epoch, master=role.view.master, address=role.view.address,
            )  # fmt: skip
        event = await self._member.carry_out(action)
        if isinstance(action, Finish):
            self._log.info("role_ready", took_ms=_now_ms() - self._began_ms)
        return event


def _now_ms() -> int:
    return clock.monotonic_ns() // 1_000_000
