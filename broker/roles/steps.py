"""What a member of a broker group asks the controllers next, the role that follows, and whether a master may answer.

    INITIAL --leader found--> FIRST_TIME_SYNC_DONE --id applied, registered--> REGISTER_DONE --role known--> RUNNING
                    LEADER        NEXT_ID, APPLY_ID, REGISTER        HEARTBEAT, ELECT               POLL, ELECT

One question is in flight at a time. Until the role is known the broker is fenced: neither master nor replica. All that
the controllers report of the master (answers and pushes alike) goes through `update`, which yields a role only for a
newer epoch, or for the epoch known from before the start if another broker is its master: no broker continues an epoch
of an earlier process. Losing the controllers changes no role.

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
from dataclasses import dataclass
from enum import Enum

from broker.replication.leader import FollowerProgress, Leader

RETRY_MS = 200
"""Pause after a question without an answer, or without a useful one."""
RETRY_MS_MAX = 2_000
"""The pause doubles up to this."""


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
        self.due_ms = 0
        """When `next_ask` has something, if nothing happens before."""
        self._pause_ms = RETRY_MS
        self._under_way: Ask | None = None

    # -- what to do ----------------------------------------------------------------------------------------------------

    def next_ask(self, now_ms: int) -> Ask | None:
        """The next question, None while one is under way or nothing is due."""
        if self._under_way is not None or now_ms < self.due_ms:
            return None
        self._under_way = self._next()
        return self._under_way

    @property
    def may_beat(self) -> bool:
        """Whether the controllers know whose heartbeats these are."""
        return self._is_registered

    def _next(self) -> Ask:
        if not self._has_leader:
            return Ask.LEADER
        if self.broker_id is None:
            return Ask.NEXT_ID
        if not self.is_applied:
            return Ask.APPLY_ID
        if not self._is_registered:
            return Ask.REGISTER
        if not self._is_seen:
            return Ask.HEARTBEAT
        if (self.view is None or self.view.master is None) and not self._is_learner:
            return Ask.ELECT
        return Ask.POLL

    # -- what came of it -----------------------------------------------------------------------------------------------

    def found_leader(self, now_ms: int) -> None:
        """A controller leads."""
        self._has_leader = True
        if self.stage is RolePhase.INITIAL:
            self.stage = RolePhase.FIRST_TIME_SYNC_DONE
        self._go_on(now_ms)

    def offered(self, broker_id: int, now_ms: int) -> None:
        """This id is free; it is written down before it is applied for."""
        self.broker_id = broker_id
        self._go_on(now_ms)

    def applied(self, now_ms: int) -> None:
        """The id belongs to this broker permanently."""
        self.is_applied = True
        self._go_on(now_ms)

    def id_taken(self, now_ms: int) -> None:
        """Another broker took the id first: ask for the next one."""
        assert not self.is_applied, "an id that was applied for stays"
        self.broker_id = None
        self._go_on(now_ms)

    def registered(self, now_ms: int) -> None:
        """The controllers know this broker's address."""
        self._is_registered = True
        if self.stage is not RolePhase.RUNNING:
            self.stage = RolePhase.REGISTER_DONE
        self._go_on(now_ms)

    def beaten(self, now_ms: int) -> None:
        """The leader has received a heartbeat: it may elect us."""
        self._is_seen = True
        self._go_on(now_ms)

    def answered(self, now_ms: int) -> None:
        """An election or a poll was answered; its content went through `update`."""
        wait = self.view is None or self.view.master is None
        self._rest(now_ms, self._backed_off() if wait else self._poll_interval_ms)
        if not wait:
            self._pause_ms = RETRY_MS

    def lost(self, now_ms: int) -> None:
        """No answer, or one from a controller that does not lead."""
        self._has_leader = False
        self._rest(now_ms, self._backed_off())

    def refused(self, now_ms: int) -> None:
        """The leader refused, for now."""
        self._rest(now_ms, self._backed_off())

    def unknown(self, now_ms: int) -> None:
        """The controllers do not know us (any more): register again."""
        self._is_registered = self._is_seen = False
        self._rest(now_ms, self._backed_off())

    @property
    def is_registered(self) -> bool:
        """Whether the controllers know of this broker's present start; before that no role is taken."""
        return self.stage not in (RolePhase.INITIAL, RolePhase.FIRST_TIME_SYNC_DONE)

    def lost_something(self, now_ms: int) -> None:
        """What the controllers know of our log is out of date: register again, then take a role."""
        self._is_registered = self._is_seen = False
        self.stage = RolePhase.FIRST_TIME_SYNC_DONE if self._has_leader else RolePhase.INITIAL
        self.role = self.view = None
        self.ask_now(now_ms)

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
