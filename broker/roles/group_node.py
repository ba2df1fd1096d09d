"""What a broker of a group does when its role changes: events in, actions out, in the order in which they are done.

    in       event                 actions                                                        then
    REST     start                 OpenLog as a replica's                                         OPENING
    IN_ROLE  a replica stays one   Refuse, FollowMaster; FenceOff where there is no master        IN_ROLE
    IN_ROLE  any other order       Refuse, for a master Suspend, EndRole                          ENDING
    IN_ROLE  the set changed       Learn as the master; FollowMaster where it has moved           IN_ROLE
    IN_ROLE  damage was found      ReportLoss, Unfollow                                           IN_ROLE
    ENDING   the role has ended    for a master Expect, CloseLog, OpenLog in the new role         OPENING
    OPENING  it stood still        for a master Expect: who waits may have come before            OPENING
    OPENING  the log is open       Lead, Serve, Announce; FollowMaster; ReportLoss                IN_ROLE
    OPENING  a master's is damaged Lead alone: clients wait                                       IN_ROLE
    IN_ROLE  nobody replaces it    Serve, Announce where that was left out                        IN_ROLE
    any      stop                  Refuse, EndRole; then ClosePorts, CloseLog                     STOPPED

An order that comes in ENDING or OPENING is noted, and the newest of them is carried out instead of the present one as
soon as an action has ended: a log that is open for an epoch that is over is never served. A set that is committed
meanwhile counts for the role that is being taken. After something was lost no earlier order is carried out: the
controllers decide again. An action that fails ends the node: the log may be neither open nor closed.

Invariants: the log is open at most once, and nothing works on it while it is closed or opened; a broker refuses before
it ends a role, leads before it serves, and is announced after it serves. A master whose log was opened with damage does
not know all that its group has confirmed: it leads, so that another one can be chosen, and serves only where there is
none. At most one of the actions that take their time (`EndRole`, `OpenLog`) is under way; its end is an event. Loop
rule: one thread. Pure: `role_queue` carries the actions out in the order of `RoleOrders`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from broker.roles.steps import KnownGroup, ReplicaSteps, RoleChange


class NodePhase(Enum):
    """What the node waits for."""

    REST = "the start"
    IN_ROLE = "an order"
    ENDING = "the end of its former role"
    OPENING = "the log to be open"
    STOPPING = "the end of its last role"
    STOPPED = "nothing"
    BROKEN = "the stop"


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """The process has started; its log is closed."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """The controllers, or an election, have decided what this broker is from now on."""

    role: RoleChange


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """What was ordered so far is void: the log is not what it was when it was decided."""


@dataclass(frozen=True, slots=True)
class SetChanged:
    """The master stays; the controllers have committed another set, or it has moved."""

    view: KnownGroup


@dataclass(frozen=True, slots=True)
class RoleEnded:
    """Nothing works on the log any more: `EndRole` is done."""


@dataclass(frozen=True, slots=True)
class LogOpened:
    """The log is open in the role that `OpenLog` named."""

    is_damaged: bool = False
    """It has damaged parts."""


@dataclass(frozen=True, slots=True)
class StaysMaster:
    """No other broker is to be the master instead of this one, whose log was opened with damage."""


@dataclass(frozen=True, slots=True)
class StoodStill:
    """The process made no turn for so long that what was sent to it before proves nothing."""


@dataclass(frozen=True, slots=True)
class DamageFound:
    """More of a replica's log turned out to be damaged."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The process is to end."""

    address: str
    """The master's after it, empty when that is not known."""
    epoch: int
    """The newest one known."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An action failed."""


Event = (
    Start | Ordered | Withdrawn | SetChanged | RoleEnded | LogOpened | StaysMaster | StoodStill | DamageFound | Stop
    | Broken
)  # fmt: skip


# -- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """A role is being taken; the log is open still."""

    role: RoleChange


@dataclass(frozen=True, slots=True)
class Finish:
    """The role is taken; the log is open again."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer nothing as a master from now on; what waits for a confirmation has an unknown outcome."""

    address: str
    """The master's, empty when it is not known."""
    epoch: int


@dataclass(frozen=True, slots=True)
class Suspend:
    """Let requests of clients wait until this broker serves, or refuses again."""


@dataclass(frozen=True, slots=True)
class Expect:
    """End the connections of replicas, and let those that come from now on wait until this broker leads."""


@dataclass(frozen=True, slots=True)
class EndRole:
    """End what works on the log: streams, timers, upkeep. `RoleEnded` when it is done."""

    good_bye: bool = False
    """Whether the process stops: others are told, so that nobody waits for it."""


@dataclass(frozen=True, slots=True)
class CloseLog:
    """Close the log; its positions stay known."""


@dataclass(frozen=True, slots=True)
class OpenLog:
    """Open the log, of a master in an epoch or (None) of a replica. `LogOpened` when it is done."""

    epoch: int | None


@dataclass(frozen=True, slots=True)
class Lead:
    """Be the master of an epoch for the replicas."""

    view: KnownGroup
    former: int | None
    """Who was the master before: it is absent, otherwise no other one would have been elected."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Answer clients as the master."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell everybody where the master is."""


@dataclass(frozen=True, slots=True)
class Learn:
    """Take over another set as the master."""

    view: KnownGroup


@dataclass(frozen=True, slots=True)
class FollowMaster:
    """Copy this master's log, and no other's."""

    view: KnownGroup


@dataclass(frozen=True, slots=True)
class FenceOff:
    """Acknowledge nothing to the master of an earlier epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Unfollow:
    """Copy nobody's log."""


@dataclass(frozen=True, slots=True)
class MasterUnreachable:
    """The master tells no address for replicas: it is followed once it does."""

    address: str


@dataclass(frozen=True, slots=True)
class ReportLoss:
    """Tell the controllers that the log has lost something; they decide again."""


@dataclass(frozen=True, slots=True)
class ClosePorts:
    """Close both ports and all connections."""


Action = (
    Begin | Finish | Refuse | Suspend | Expect | EndRole | CloseLog | OpenLog | Lead | Serve | Announce | Learn
    | FollowMaster | FenceOff | Unfollow | MasterUnreachable | ReportLoss | ClosePorts
)  # fmt: skip
Actions = tuple[Action, ...]


class GroupNode:
    """One broker of a group, from its start to its stop."""

    def __init__(self) -> None:
        self.phase = NodePhase.REST
        self.changes = 0
        """Roles begun."""
        self.epoch: int | None = None
        """The one that the log is open for, or is being opened for, as a master's; None as a replica's."""
        self._order: RoleChange | None = None
        """The role that is there or being taken; None when there is none, or it is void."""
        self._wanted: RoleChange | None = None
        """The newest order that is not begun."""
        self._begun = 0
        """Epoch of the role that was begun last."""
        self._former: int | None = None
        self._followed = ""
        """The address whose log is copied."""
        self._withholds = False
        """Whether it leads without serving, because its log is damaged."""

    def step(self, event: Event) -> Actions:
        """Take an event; what is to be done now, in this order."""
        if self.phase is NodePhase.STOPPED or (self.phase is NodePhase.BROKEN and not isinstance(event, Stop)):
            return ()
        match event:
            case Ordered(role):
                return self._ordered(role)
            case SetChanged(view):
                return self._set_changed(view)
            case RoleEnded():
                return self._role_ended()
            case LogOpened(is_damaged):
                return self._opened(is_damaged=is_damaged)
            case Withdrawn():
                self._void()
            case StoodStill() | StaysMaster():
                return self._as_master(event)
            case DamageFound():
                return self._damage_found()
            case Start() | Stop() | Broken():
                return self._turned(event)
        return ()

    def _turned(self, event: Start | Stop | Broken) -> Actions:
        """The process begins or ends."""
        if isinstance(event, Start):
            return self._open()
        if isinstance(event, Broken):
            self.phase = NodePhase.BROKEN
            return ()
        self.phase = NodePhase.STOPPING
        return Refuse(event.address, event.epoch), EndRole(good_bye=True)

    def _as_master(self, event: StoodStill | StaysMaster) -> Actions:
        if isinstance(event, StaysMaster):
            return self._serve() if self.phase is NodePhase.IN_ROLE and self._withholds else ()
        return (Expect(),) if self.phase is NodePhase.OPENING and self.epoch is not None else ()

    # -- orders --------------------------------------------------------------------------------------------------------

    def _ordered(self, role: RoleChange) -> Actions:
        if not role.is_master and not role.is_fenced:
            self._former = role.view.master
        self._wanted = role
        return self._begin() if self.phase is NodePhase.IN_ROLE else ()

    def _begin(self) -> Actions:
        """Take the role that is wanted."""
        begun = self._adopt()
        role = self._order
        assert role is not None
        if role.is_master or self.epoch is not None:
            self.phase, self._followed = NodePhase.ENDING, ""
            return *begun, EndRole()
        return *begun, *self._replicate(), Finish()

    def _adopt(self) -> Actions:
        """The newest order is the one that is carried out now."""
        role, self._wanted = self._wanted, None
        if role is None:
            return ()
        self._order, self._begun = role, role.view.epoch
        self.changes += 1
        if role.is_master:
            return Begin(role), Refuse("", role.view.epoch), Suspend()
        return Begin(role), Refuse("" if role.is_fenced else role.view.address, role.view.epoch)

    def _nobody(self) -> Actions:
        """Nothing waits for a role that is not taken."""
        return () if self._order is not None else (Refuse("", self._begun),)

    def _replicate(self) -> Actions:
        """The log is a replica's: copy the master's, if there is one."""
        assert self._order is not None
        view = self._order.view
        fence = (FenceOff(view.epoch),) if self._followed else ()
        if self._order.is_fenced:
            return fence
        if not view.ha_address:
            return *fence, MasterUnreachable(view.address)
        self._followed = view.ha_address
        return (FollowMaster(view),)

    def _set_changed(self, view: KnownGroup) -> Actions:
        self._wanted = _renewed(self._wanted, view)
        self._order = order = _renewed(self._order, view)
        if self.phase is not NodePhase.IN_ROLE or order is None:
            return ()
        if order.is_master:
            return (Learn(view),)
        return self._replicate() if not order.is_fenced and view.ha_address not in ("", self._followed) else ()

    def _void(self) -> None:
        """What was ordered so far is void; a master stays one until the controllers decide again."""
        self._wanted = None
        if self.phase is not NodePhase.IN_ROLE or self.epoch is None:
            self._order = None

    def _damage_found(self) -> Actions:
        self._void()
        if self.phase is not NodePhase.IN_ROLE or self.epoch is not None:
            return ()
        self._followed = ""
        return ReportLoss(), Unfollow()

    # -- from one role to the other ------------------------------------------------------------------------------------

    def _role_ended(self) -> Actions:
        if self.phase is NodePhase.STOPPING:
            self.phase = NodePhase.STOPPED
            return ClosePorts(), CloseLog()
        begun, opens = self._adopt() or self._nobody(), self._open()
        return *begun, *((Expect(),) if self.epoch is not None else ()), CloseLog(), *opens

    def _open(self) -> Actions:
        self.phase, self._withholds = NodePhase.OPENING, False
        self.epoch = self._order.view.epoch if self._order is not None and self._order.is_master else None
        return (OpenLog(self.epoch),)

    def _opened(self, *, is_damaged: bool) -> Actions:
        self.phase = NodePhase.IN_ROLE
        loss: Actions = ()
        if is_damaged and self.epoch is None:
            self._order = self._wanted = None
            loss = (ReportLoss(),)
        if self._wanted is not None:
            return self._begin()
        order, former = self._order, self._former
        if order is None:
            if self.epoch is not None:
                self.phase = NodePhase.ENDING
                return (EndRole(),)
            return (*loss, Finish()) if self.changes else loss
        if not order.is_master:
            return *self._replicate(), Finish()
        self._former, self._withholds = None, is_damaged
        served = () if is_damaged else self._serve()
        return Lead(order.view, former), *served, Finish()

    def _serve(self) -> Actions:
        self._withholds = False
        assert self.epoch is not None
        return Serve(self.epoch), Announce()


def _renewed(role: RoleChange | None, view: KnownGroup) -> RoleChange | None:
    """The role with the newer report of the same epoch."""
    if role is None or (role.view.epoch, role.view.master) != (view.epoch, view.master):
        return role
    return replace(role, view=view)


class RoleOrders:
    """What a node has decided and nobody has done yet, in its order, for whoever carries it out."""

    def __init__(self, node: GroupNode, due: Callable[[], None], beat: Callable[[], None]) -> None:
        """`due` is called when something may be to do; `beat` tells the controllers how the log stands."""
        self.node = node
        self._due, self._beat = due, beat
        self.todo: deque[Action] = deque()
        self._is_paused = False
        self._wanted: RoleChange | None = None
        """What was wanted during the pause."""

    def pause(self) -> None:
        """Begin no role until `resume`: who leads is about to be known."""
        self._is_paused = True

    def resume(self) -> None:
        """Begin the newest role that was wanted meanwhile."""
        self._is_paused = False
        role, self._wanted = self._wanted, None
        if role is not None:
            self.feed(Ordered(role))

    def report(self, steps: ReplicaSteps, view: KnownGroup, save: Callable[[int], None]) -> None:
        """Take what is said of the group, as `steps` understand it; `save` writes a new epoch before it is wanted."""
        change = steps.update(view)
        if isinstance(change, RoleChange):
            save(steps.epoch)
            self.want(change)
        elif change is not None:
            self.feed(SetChanged(change.view))

    def want(self, role: RoleChange) -> None:
        """Take this role as soon as the action under way is done."""
        if self._is_paused:
            self._wanted = role
        else:
            self.feed(Ordered(role))

    def drop(self) -> None:
        """Do not take the role that is wanted."""
        self._wanted = None
        self.feed(Withdrawn())

    def feed(self, event: Event) -> None:
        """Let the node decide what an event means; it is carried out later."""
        self.todo.extend(self.node.step(event))
        self._due()

    def take(self) -> Action:
        """The next action, to be done now."""
        action = self.todo.popleft()
        if isinstance(action, (Begin, Finish)):
            self._beat()  # the log is closed and opened in between, in this loop: no heartbeat is sent meanwhile
        return action

    def give_up(self, address: str, epoch: int) -> None:
        """What is not done yet is never done: the process is to end; the arguments are those of `Stop`."""
        self.todo.clear()
        self.feed(Stop(address, epoch))
