"""What a member of a broker group asks the controllers next, the role that follows, and whether a master may answer.

    INITIAL --leader found--> FIRST_TIME_SYNC_DONE --id applied, registered--> REGISTER_DONE --role known--> RUNNING
                    LEADER        NEXT_ID, APPLY_ID, REGISTER        HEARTBEAT, ELECT            POLL, ELECT, LEAVE

One question is in flight at a time, and `concluded` says what follows from its answer. Until the role is known the
broker is fenced: neither master nor replica. All that the controllers report of the master (answers and pushes alike)
goes through `update`, which yields a role only for a newer epoch, or for the epoch known from before the start if
another broker is its master: no broker continues an epoch of an earlier process. Losing the controllers changes no
role. The broker carries a question to the leading controller and the answer back, and writes down what has to be on
the disk (`AskingBroker`). A master that is about to stop asks to be replaced (LEAVE) until it is answered.

`PauseWatch`: a master whose process stood still may have been replaced, so it answers only after a proof that it was
not.

    running --(the loop did not run for `limit_ms`)--> in doubt --(proof)--> running
    proof   of a master: the controllers' answer to a question asked since that it is the master in its epoch, or every
            member in sync has reconnected since and knows no newer epoch, or no other member is in sync
            of a replica: the controllers' answer to a question asked since, whatever it is

The controllers elect another master after `heartbeat_timeout_ms` without a heartbeat; `limit_ms` is so much shorter
that the last heartbeat before a shorter pause is still recent. There is one watch for the whole process, because the
message that makes a replica the master may have waited in a socket during the pause and be out of date. Connections of
members are closed when the doubt begins: what they sent may be older, a greeting on a new connection is not.
Invariants: the epochs of the roles handed out never fall, and two with the same epoch name the same master. Between
the end of a pause and a proof `may_answer` is false; a master that ran all the time is never in doubt, with the
controllers or without. Pure: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from broker.replication.leader import FollowerProgress, Leader
from remoting.protocol.frames.codes import ResponseCode

RETRY_MS = 200
"""Pause after a question without an answer, or without a useful one."""
RETRY_MS_MAX = 2_000
"""The pause doubles up to this."""
LEAVE_RETRY_MS = 50
"""That of a master that is about to stop, which does not grow: its clients wait."""
UNKNOWN_CODES = frozenset(
    {
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS,
    }
)
"""The controllers do not know this broker, or have had no heartbeat of it since they started."""


class RolePhase(Enum):
    """How far the broker has come."""

    INITIAL = "looking for the leading controller"
    FIRST_TIME_SYNC_DONE = "registering at the controllers"
    REGISTER_DONE = "waiting for a master to be elected"
    RUNNING = "running"


class Ask(Enum):
    """A question to the controllers."""

    LEADER = "leader"
    NEXT_ID = "next id"
    APPLY_ID = "apply id"
    REGISTER = "register"
    HEARTBEAT = "heartbeat"
    ELECT = "elect"
    POLL = "poll"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """The group as the controllers report it; `master` is None while it has none."""

    epoch: int
    master: int | None
    address: str = ""
    ha_address: str = ""
    members: frozenset[int] = frozenset()
    set_epoch: int = 0


@dataclass(frozen=True, slots=True)
class RoleChange:
    """What the broker has to be from now on: the master itself, a replica of another, or (no master) fenced."""

    view: KnownGroup
    is_master: bool

    @property
    def is_fenced(self) -> bool:
        """Whether there is no master to be, or to follow."""
        return self.view.master is None


@dataclass(frozen=True, slots=True)
class SyncStateSetChange:
    """The master stays, the controllers have committed another set of replicas in sync, or it has moved."""

    view: KnownGroup


@dataclass(frozen=True, slots=True)
class ControllerAnswer:
    """The answer to a question."""

    code: int | None
    """None: there is no answer, or it came from a controller that does not lead."""
    view: KnownGroup | None = None
    """The group, where the question was about it."""
    broker_id: int = 0
    """The free one, where that was the question."""
    remark: str = ""
    """Why it was refused, for people."""


class AskingBroker(Protocol):
    """The broker that asks, as its steps need it; what is saved is on the disk on return."""

    def save_id(self, broker_id: int) -> None:
        """An id is free, and is going to be applied for."""

    def save_applied(self) -> None:
        """The id belongs to this broker permanently."""

    def save_registered(self) -> None:
        """The controllers know of this start. Not before: a process that dies earlier must not hide a reboot."""

    def report(self, view: KnownGroup) -> None:
        """Give what is said of the group to the roles."""

    def proved(self, view: KnownGroup, asked_ms: int) -> None:
        """So the controllers answered a question of `asked_ms`: what `PauseWatch.confirmed` needs."""

    def left(self, answer: ControllerAnswer) -> None:
        """The controllers have chosen another master in place of this one, or have refused to."""


@dataclass(slots=True)
class _Question:
    ask: Ask
    asked_ms: int
    is_outdated: bool = False
    """Whether something was lost since it was asked."""


class ReplicaSteps:
    """One broker's way to its role."""

    def __init__(
        self, broker_id: int | None, *, is_applied: bool, epoch: int, is_learner: bool, poll_interval_ms: int
    ) -> None:
        self.stage = RolePhase.INITIAL
        self.broker_id = broker_id
        self.is_applied = is_applied
        self.epoch = epoch
        """The newest master epoch known, also to earlier processes of this broker."""
        self.role: RoleChange | None = None
        """None until it is known, which is fenced as well."""
        self.view: KnownGroup | None = None
        self._is_learner = is_learner
        self._poll_interval_ms = poll_interval_ms
        self._has_leader = self._is_registered = self._is_seen = False
        self._has_stood = False
        """Whether an election was asked for whose outcome has not been asked for yet."""
        self._is_leaving = False
        self.due_ms = 0
        """When `next_ask` has something, if nothing happens before."""
        self._pause_ms = RETRY_MS
        self._under_way: _Question | None = None

    # -- what to do ----------------------------------------------------------------------------------------------------

    def next_ask(self, now_ms: int) -> Ask | None:
        """The next question, None while one is under way or nothing is due."""
        if self._under_way is not None or now_ms < self.due_ms:
            return None
        self._under_way = _Question(self._next(), now_ms)
        return self._under_way.ask

    @property
    def may_beat(self) -> bool:
        """Whether the controllers know whose heartbeats these are."""
        return self._is_registered

    def _next(self) -> Ask:
        if not self._has_leader:
            return Ask.LEADER
        if self._is_leaving:
            return Ask.LEAVE
        if self.broker_id is None:
            return Ask.NEXT_ID
        if not self.is_applied:
            return Ask.APPLY_ID
        if not self._is_registered:
            return Ask.REGISTER
        if not self._is_seen:
            return Ask.HEARTBEAT
        if (self.view is None or self.view.master is None) and not self._is_learner and not self._has_stood:
            return Ask.ELECT
        return Ask.POLL

    # -- what came of it -----------------------------------------------------------------------------------------------

    def concluded(self, answer: ControllerAnswer, now_ms: int, broker: AskingBroker) -> bool:
        """The question under way is answered, or never will be; False for a refusal."""
        question, code = self._under_way, answer.code
        assert question is not None, "a question is concluded once"
        ask = question.ask
        self._has_stood = False
        self._is_leaving &= ask is not Ask.LEAVE or code is None
        if code is None:
            self._has_leader = False
        elif code in UNKNOWN_CODES:
            self._is_registered = self._is_seen = False
        elif ask is Ask.APPLY_ID and code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            self.broker_id = None  # another broker took it first, or the group is full: ask for the next one
        elif code == 0 or (ask is Ask.ELECT and code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
            self._granted(question, answer, now_ms, broker)
            if self._is_leaving:
                self.ask_now(now_ms)
            return True
        self._rest(now_ms, LEAVE_RETRY_MS if self._is_leaving else self._backed_off())
        if ask is Ask.LEAVE and code is not None:
            broker.left(answer)
        return code is None

    def _granted(self, question: _Question, answer: ControllerAnswer, now_ms: int, broker: AskingBroker) -> None:
        match question.ask:
            case Ask.LEADER:
                self.found_leader(now_ms)
            case Ask.NEXT_ID:
                broker.save_id(answer.broker_id)
                self.broker_id = answer.broker_id
                self._go_on(now_ms)
            case Ask.APPLY_ID:
                broker.save_applied()
                self.is_applied = True
                self._go_on(now_ms)
            case Ask.REGISTER:
                self._register(question, answer.view, now_ms, broker)
            case Ask.HEARTBEAT:
                self._is_seen = True  # the leader may elect us
                self._go_on(now_ms)
            case Ask.ELECT:
                self._has_stood = True  # the group is polled, for all of it, the set in sync too
                self._rest(now_ms, 0)
            case Ask.POLL:
                self._polled(question, answer.view, now_ms, broker)
            case Ask.LEAVE:
                assert answer.view is not None
                broker.report(answer.view)
                self._rest(now_ms, self._poll_interval_ms)
                broker.left(answer)

    def _register(self, question: _Question, view: KnownGroup | None, now_ms: int, broker: AskingBroker) -> None:
        if question.is_outdated:  # what they know of our log is not true any more: once more
            self._rest(now_ms, self._backed_off())
            return
        assert view is not None
        broker.save_registered()
        self.registered(now_ms)
        broker.report(view)

    def _polled(self, question: _Question, view: KnownGroup | None, now_ms: int, broker: AskingBroker) -> None:
        assert view is not None
        broker.report(view)
        broker.proved(view, question.asked_ms)
        wait = self.view is None or self.view.master is None
        self._rest(now_ms, self._backed_off() if wait else self._poll_interval_ms)
        if not wait:
            self._pause_ms = RETRY_MS

    def found_leader(self, now_ms: int) -> None:
        """A controller leads."""
        self._has_leader = True
        if self.stage is RolePhase.INITIAL:
            self.stage = RolePhase.FIRST_TIME_SYNC_DONE
        self._go_on(now_ms)

    def registered(self, now_ms: int) -> None:
        """The controllers know this broker's address, and have to hear its heartbeat."""
        self._is_registered, self._is_seen = True, False
        if self.stage is not RolePhase.RUNNING:
            self.stage = RolePhase.REGISTER_DONE
        self._go_on(now_ms)

    def beaten(self, code: int, now_ms: int) -> None:
        """The leading controller has answered one of the heartbeats that all of them get."""
        if code in UNKNOWN_CODES and self._is_registered:
            self._is_registered = self._is_seen = False
            self.ask_now(now_ms)

    @property
    def is_registered(self) -> bool:
        """Whether the controllers know of this broker's present start; before that no role is taken."""
        return self.stage not in (RolePhase.INITIAL, RolePhase.FIRST_TIME_SYNC_DONE)

    def lost_something(self, now_ms: int) -> None:
        """What the controllers know of our log is out of date: register again, then take a role."""
        self._is_registered = self._is_seen = False
        if self._under_way is not None:
            self._under_way.is_outdated = True
        self.stage = RolePhase.FIRST_TIME_SYNC_DONE if self._has_leader else RolePhase.INITIAL
        self.role = self.view = None
        self.ask_now(now_ms)

    def leave(self, now_ms: int) -> None:
        """Have another broker be the master in place of this one: asked next, and again until there is an answer."""
        self._is_leaving = True
        self.ask_now(now_ms)

    def altered(self, members: frozenset[int], set_epoch: int) -> ControllerAnswer:
        """What it means to the master that asked for this set that the controllers have committed it.

        Nothing when something was lost since: what was known of the group is void.
        """
        if self.view is None:
            return ControllerAnswer(None, remark="this broker registers again, because it has lost something")
        return ControllerAnswer(0, replace(self.view, members=members, set_epoch=set_epoch))

    def ask_now(self, now_ms: int) -> None:
        """Something has changed: ask now."""
        self.due_ms = min(self.due_ms, now_ms)

    def _go_on(self, now_ms: int) -> None:
        self._pause_ms = RETRY_MS
        self._rest(now_ms, 0)

    def _rest(self, now_ms: int, pause_ms: int) -> None:
        self._under_way = None
        self.due_ms = now_ms + pause_ms

    def _backed_off(self) -> int:
        pause_ms, self._pause_ms = self._pause_ms, min(2 * self._pause_ms, RETRY_MS_MAX)
        return pause_ms

    # -- roles ---------------------------------------------------------------------------------------------------------

    def update(self, view: KnownGroup) -> RoleChange | SyncStateSetChange | None:
        """Take a controller's report of the group; return what changes for this broker."""
        if view.master is None and self.stage is RolePhase.RUNNING:
            self.due_ms = 0  # there may be another master by now: ask for it
        if view.epoch < self.epoch or self.broker_id is None or not self.is_applied:
            return None
        if not self.is_registered:
            return None  # a report from before this registration may rely on what this broker has lost
        if view.epoch == self.epoch:
            return self._same_epoch(view)
        self.epoch, self.view = view.epoch, view
        return self._take(view)

    def _same_epoch(self, view: KnownGroup) -> RoleChange | SyncStateSetChange | None:
        before = self.view
        if before is None:
            # The epoch is from before our start: only another broker can be its master.
            self.view = view if view.master != self.broker_id else None
            return None if self.view is None else self._take(view)
        if before.master is None and view.master not in (None, self.broker_id):
            self.view = view
            return self._take(view)
        if view.master != before.master or view == before or view.set_epoch < before.set_epoch:
            return None
        self.view = view
        return SyncStateSetChange(view)

    def _take(self, view: KnownGroup) -> RoleChange | None:
        role = RoleChange(view, is_master=view.master is not None and view.master == self.broker_id)
        if role.is_fenced and (self.role is None or self.role.is_fenced):
            return None  # unchanged: it is fenced already
        self.role = role
        if not role.is_fenced:
            self.stage = RolePhase.RUNNING
        return role


def pause_limit_ms(heartbeat_interval_ms: int, heartbeat_timeout_ms: int) -> int:
    """The longest time without a turn of the loop after which no other master can have been elected."""
    return max(heartbeat_interval_ms, heartbeat_timeout_ms - 2 * heartbeat_interval_ms)


class PauseWatch:
    """The doubts of one process; `doubtful` is called with the milliseconds when one begins."""

    def __init__(self, limit_ms: int, now_ms: Callable[[], int], doubtful: Callable[[int], None]) -> None:
        self.limit_ms = limit_ms
        self._now_ms = now_ms
        self._doubtful = doubtful
        self._ran_ms = now_ms()
        self._since_ms: int | None = None
        self._before: Sequence[FollowerProgress] = ()
        """Connections of members from before the doubt: they end in a moment."""
        self._leader: Leader | None = None
        self._on_doubt: Callable[[], None] = _ignore
        self.pauses = 0
        """Times at which it was in doubt."""

    def lead(self, leader: Leader | None, doubtful: Callable[[], None] | None = None) -> None:
        """This process is the master in the leader's epoch from now on, or no master any more.

        `doubtful` is called when a doubt begins: what was about to be answered must not be.
        """
        self._leader, self._on_doubt = leader, doubtful or _ignore

    def may_answer(self) -> bool:
        """Whether no pause leaves it in doubt that this broker is the master. Cheap: reads the clock once."""
        now_ms = self._now_ms()
        paused_ms = now_ms - self._ran_ms
        self._ran_ms = now_ms
        if paused_ms > self.limit_ms:
            self._since_ms = now_ms
            self.pauses += 1
            self._before = () if self._leader is None else self._leader.replicas()
            self._on_doubt()
            self._doubtful(paused_ms)
        return self._since_ms is None

    def tick(self) -> bool:
        """Check the clock and the members; True when they have just ended a master's doubt."""
        if self.may_answer() or not self._members_prove():
            return False
        self._since_ms = None
        return True

    def confirmed(self, epoch: int, master: int | None, asked_ms: int) -> bool:
        """The controllers' answer to a question of `asked_ms`; True when it has ended a master's doubt."""
        if self._since_ms is None or asked_ms < self._since_ms:
            return False
        leader = self._leader
        if leader is not None and (epoch, master) != (leader.epoch, leader.broker):
            return False
        self._since_ms = None
        return leader is not None

    def _members_prove(self) -> bool:
        leader, since_ms = self._leader, self._since_ms
        assert since_ms is not None
        if leader is None or leader.superseded:
            return False
        there = (each for each in leader.replicas() if not any(each is former for former in self._before))
        came = {each.broker for each in there if each.came_ms >= since_ms}
        return leader.members.effective - {leader.broker} <= came


def _ignore() -> None:
    """The callback while this broker is not the master."""
