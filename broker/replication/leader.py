"""The master's side of replication: what each replica gets, what all of them have, who is in sync.

    hello -> Welcome | Refusal        ready -> the stream starts        demand / sent / acknowledged, again and again
    confirm position  =  the lowest flushed end over the effective SyncStateSet, the master's too
    expand            :  acknowledged >= confirm position and >= start of the current epoch, and no learner
    shrink            :  no connection for a while, or not caught up for too long, or less than is confirmed

When a message is acknowledged:

| mode  | acknowledged and shown when                                        | lost with the master    |
|-------|--------------------------------------------------------------------|-------------------------|
| async | it is in the master's log (its own flush rule)                     | yes                     |
| count | `count` copies, the master's among them, are flushed               | possible                |
| all   | every member of the effective SyncStateSet has flushed it, and at  | no, with at least two   |
|       | least `in_sync_min` are members                                    |                         |

On a broker with `flush = "async"` written counts as flushed: that survives a killed process, not a machine. `promises`
puts the rule in one sentence.

The SyncStateSet, as the controllers have committed it and as they may be about to commit it:

    committed {1, 2} at 7 --propose {1, 2, 3}--> effective {1, 2, 3} --learn {1, 2, 3} at 8--> committed {1, 2, 3}
                                                      |--refused--> effective {1, 2}
                                                      '--no answer--> effective {1, 2, 3} until a set above 7 is learnt

A member that may become master must have every confirmed byte, so the master waits for the committed set and for every
set that may still replace it. Each proposal names the set epoch it builds on; a newer set epoch voids it.

Invariants: `effective` covers every set the controllers can have for this master epoch, as long as each proposal is
sent at most once. The confirm position never falls, stands still while a required member has no stream, and covers
only bytes that every possible master has on its disk. An end counts only when it was acknowledged in this epoch on the
replica's present connection. Pure: callers pass positions and the time; one owner, one instance per master epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from broker.replication.epochs import Extent
from broker.replication.frames import (
    EXPIRED,
    OLD_EPOCH,
    OTHER_GROUP,
    TOO_MANY,
    UNKNOWN_VERSION,
    VERSION,
    Ack,
    Hello,
    Ready,
    Refusal,
    Welcome,
)
from broker.replication.majority import Majority
from remoting.protocol.errors import LocalMisuse, RemoteViolation

ASYNC, COUNT, ALL = "async", "count", "all"
MODES = (ASYNC, COUNT, ALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """The rule of one broker group."""

    mode: str = ALL
    count: int = 1
    """With `count`: copies that make a message taken."""
    in_sync_min: int = 1
    """With `all`: members of the SyncStateSet without which nothing is taken."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise LocalMisuse(f"acknowledge mode {self.mode!r} is none of {', '.join(MODES)}")
        if self.count < 1 or self.in_sync_min < 1:
            raise LocalMisuse("at least one copy makes a message taken")

    @property
    def members_min(self) -> int:
        """Members the SyncStateSet needs before its confirm position may move."""
        return self.in_sync_min if self.mode == ALL else 1

    def limit(self, own_end: int, acknowledged: Iterable[int], confirm: int) -> int | None:
        """Return up to where messages count as taken, None when the local flush rule decides alone.

        `acknowledged` are the flushed ends of the other in-sync replicas, `confirm` what all of them share.
        """
        if self.mode == ASYNC:
            return None
        if self.mode == ALL:
            return confirm
        ends = sorted((own_end, *acknowledged), reverse=True)
        return ends[self.count - 1] if self.count <= len(ends) else 0

    def accepts(self, in_sync: int) -> bool:
        """Whether an append has a chance with `in_sync` reachable members, the master counted."""
        if self.mode == COUNT:
            return in_sync >= self.count
        return self.mode == ASYNC or in_sync >= self.in_sync_min


@dataclass(frozen=True, slots=True)
class Proposal:
    """A set the controllers are asked to commit if theirs is still at `base_epoch`."""

    number: int
    members: frozenset[int]
    base_epoch: int


class SyncStateSet:
    """Committed and possible members of one broker group."""

    __slots__ = ("_doubt", "_number", "committed", "effective", "open", "set_epoch")

    def __init__(self, members: Iterable[int], set_epoch: int) -> None:
        self.committed = frozenset(members)
        self.set_epoch = set_epoch
        self.open: Proposal | None = None
        """The proposal that waits for its answer."""
        self._doubt: frozenset[int] = frozenset()
        """Members of proposals that were never answered."""
        self._number = 0
        self.effective = self.committed

    @property
    def doubtful(self) -> frozenset[int]:
        """Members that are required only because a proposal with them has no answer."""
        return self._doubt - self.committed

    def learn(self, members: Iterable[int], set_epoch: int) -> bool:
        """Take the set the controllers committed; False when it is not newer. Proposals for an older set are void."""
        if set_epoch <= self.set_epoch:
            return False
        self.committed, self.set_epoch = frozenset(members), set_epoch
        self.open, self._doubt = None, frozenset()
        self._united()
        return True

    def propose(self, members: Iterable[int]) -> Proposal:
        """Make a proposal, to be sent at most once; its members are required from now on."""
        if self.open is not None:
            raise LocalMisuse("a proposal is under way")
        self._number += 1
        self.open = Proposal(self._number, frozenset(members), self.set_epoch)
        self._united()
        return self.open

    def refused(self, proposal: Proposal) -> None:
        """The controllers refused the proposal finally: they received it, and it was sent once."""
        if self.open is proposal:
            self.open = None
            self._united()

    def unanswered(self, proposal: Proposal) -> None:
        """The proposal's outcome is unknown: its members stay required, another one may be made."""
        if self.open is proposal:
            self._doubt |= proposal.members
            self.open = None
            self._united()

    def _united(self) -> None:
        members = self.committed | self._doubt
        self.effective = members | self.open.members if self.open is not None else members


SMALL_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSettings:
    """Times and limits of a master."""

    heartbeat_ms: int = 500
    """A stream that carried nothing for so long gets a heartbeat."""
    silence_ms: int = 3_000
    """A replica that acknowledged nothing for so long is disconnected."""
    lag_ms: int = 5_000
    """A member that has not caught up for so long leaves the SyncStateSet."""
    absence_ms: int = 1_000
    """A member without a connection for so long leaves the SyncStateSet."""
    window_bytes: int = 16 * 1024 * 1024
    """Bytes sent and not yet acknowledged by one replica."""
    part_bytes: int = 1024 * 1024
    """Bytes of one transfer."""
    small_bytes: int = SMALL_BYTES
    """Less than this waits for an acknowledgement when `small_parts` transfers are under way: each costs the master two
    calls of the system, and the replica's disk does not take more of them in the same time."""
    small_parts: int = 2
    pause_bytes: int = 1024
    """After a transfer of at least so much, one that is small waits for the end of a pause: there is load, and more
    gathers. Where a replica has everything there is no pause."""
    replicas_max: int = 16
    """Connections of replicas; one more is refused."""


@dataclass(slots=True)
class FollowerProgress:
    """One connection of a replica."""

    broker: int
    connection: int
    is_learner: bool
    heard_ms: int
    sent_ms: int
    came_ms: int
    """When its HELLO came on this connection."""
    caught_up_ms: int
    """Last time at which it had all there was, on an earlier connection perhaps."""
    first: int = 0
    """Where its stream started."""
    sent: int = -1
    """Up to where it was sent the log; -1 before it is ready."""
    acknowledged: int = -1
    """Its end in this epoch, as far as it is kept; -1 before the first acknowledgement."""
    parts: deque[int] = field(default_factory=deque)
    """Ends of the transfers that are not acknowledged, of those that held all there was: others may end within a group,
    which is acknowledged as a whole."""
    is_pausing: bool = False
    """Whether a small transfer waits."""
    has_caught_up: bool = False
    """Whether it was told that it had everything, out of sync as it was."""
    mark_end: int = -1
    mark_ms: int = 0
    """The log's end at a send; when the replica acknowledges it, it was caught up then."""

    def lag_ms(self, end: int, now_ms: int) -> int:
        """For how long it has not had the whole log, which ends at `end`."""
        return 0 if self.acknowledged >= end else max(0, now_ms - self.caught_up_ms)


def expired(epoch: int, log: Extent) -> Refusal:
    """The refusal of a replica whose next byte is no longer in the log: it must start again from the log's begin."""
    return Refusal(EXPIRED, epoch, f"the log begins at {log.begin}")


class Leader:
    """All replicas of a master in one epoch."""

    def __init__(
        self,
        broker: int,
        epoch: int,
        epoch_start: int,
        members: SyncStateSet,
        acknowledge: Acknowledge,
        settings: LeaderSettings,
        *,
        cluster: str,
        group: str,
        confirm: int,
        now_ms: int,
        majority: Majority | None = None,
    ) -> None:
        """`majority`: the rule of a group without controllers; its members are all that the configuration names."""
        self.broker, self.epoch, self.epoch_start = broker, epoch, epoch_start
        self.members = members
        self.acknowledge = acknowledge
        self.settings = settings
        self.confirm_position = confirm
        self.majority = majority
        self.superseded = 0
        """A newer epoch that a replica knows of, 0 for none: with one, this broker is no longer the master."""
        self._cluster, self._group = cluster, group
        self._replicas: dict[int, FollowerProgress] = {}
        self._by_broker: dict[int, FollowerProgress] = {}
        self._gone_ms: dict[int, int] = {}
        """When the last connection of a broker ended."""
        self._caught_up_ms: dict[int, int] = {}
        """When a broker without a connection last had all there was."""
        self._started_ms = now_ms

    # -- connections --------------------------------------------------------------------------------------------------

    def hello(self, connection: int, hello: Hello, log: Extent, now_ms: int) -> Welcome | Refusal:
        """Answer a replica that asks; an earlier connection of the same broker is not known any more afterwards."""
        refusal = self._refusal(hello)
        if refusal is not None:
            return refusal
        self._forget(self._by_broker.get(hello.broker), now_ms)
        caught_up_ms = self._caught_up_ms.get(hello.broker, self._started_ms)
        replica = FollowerProgress(hello.broker, connection, hello.is_learner, now_ms, now_ms, now_ms, caught_up_ms)
        self._replicas[connection] = self._by_broker[hello.broker] = replica
        return Welcome(self.epoch, log.begin, log.end, list(log.epochs))

    def _refusal(self, hello: Hello) -> Refusal | None:
        if hello.version != VERSION:
            text = f"version {hello.version} is not spoken here, {VERSION} is: run one release in the group"
            return Refusal(UNKNOWN_VERSION, self.epoch, text)
        asked, own = f"{hello.cluster}/{hello.group}", f"{self._cluster}/{self._group}"
        if asked != own:
            text = f"this is {own}, not {asked}: check cluster_name and broker_name of the replica"
            return Refusal(OTHER_GROUP, self.epoch, text)
        if hello.broker == self.broker:
            text = (
                f"broker id {hello.broker} is the master's own: is the data directory a copy? Start with an empty one"
            )
            return Refusal(OTHER_GROUP, self.epoch, text)
        if hello.epoch > self.epoch:
            self.superseded = max(self.superseded, hello.epoch)
            return Refusal(OLD_EPOCH, self.epoch, f"there is an epoch {hello.epoch}, mine is {self.epoch}")
        if hello.broker not in self._by_broker and len(self._replicas) >= self.settings.replicas_max:
            return Refusal(TOO_MANY, self.epoch, f"{len(self._replicas)} replicas are connected already")
        return None

    def ready(self, connection: int, ready: Ready, log: Extent, now_ms: int) -> Refusal | None:
        """The replica has truncated its log and continues at a position of ours."""
        replica = self._replica(connection)
        if ready.epoch != self.epoch or replica.sent >= 0 or ready.position > log.end:
            raise RemoteViolation(f"ready for epoch {ready.epoch} at {ready.position}, end {log.end}, {replica}")
        if ready.position < log.begin:
            return expired(self.epoch, log)
        replica.first = replica.sent = ready.position
        replica.heard_ms = now_ms
        return None

    def acknowledged(self, connection: int, ack: Ack, now_ms: int) -> int | None:
        """A replica has flushed its log up to an end. Raises RemoteViolation when it never got those bytes.

        Returns how many milliseconds before that end was sent to it, where that was noted.
        """
        replica = self._replica(connection)
        if ack.epoch != self.epoch or not replica.acknowledged <= ack.end <= replica.sent:
            raise RemoteViolation(f"acknowledges {ack.end} of epoch {ack.epoch}, {replica}")
        replica.acknowledged = ack.end
        replica.heard_ms = now_ms
        while replica.parts and replica.parts[0] <= ack.end:
            replica.parts.popleft()
        if 0 <= replica.mark_end <= ack.end:
            replica.caught_up_ms = replica.mark_ms
            replica.mark_end = -1
            return now_ms - replica.mark_ms
        return None

    def disconnected(self, connection: int, now_ms: int, *, is_stopping: bool = False) -> None:
        """The connection ended; idempotent. `is_stopping`: its broker stops and counts as absent from now on."""
        self._forget(self._replicas.get(connection), now_ms - (self.settings.absence_ms + 1) * is_stopping)

    def learn(self, members: Iterable[int], set_epoch: int, now_ms: int) -> bool:
        """Take the set the controllers committed; False when it is not newer.

        A replica outside of it must acknowledge again: it may have restarted with less since it acknowledged, which
        the controllers answer with a new set epoch, and its former connection may not have ended yet.
        """
        if not self.members.learn(members, set_epoch):
            return False
        for replica in self.replicas():
            if replica.broker not in self.members.committed and not replica.is_learner:
                self._forget(replica, now_ms)
        return True

    def _forget(self, replica: FollowerProgress | None, now_ms: int) -> None:
        if replica is None:
            return
        del self._replicas[replica.connection]
        del self._by_broker[replica.broker]
        self._gone_ms[replica.broker] = now_ms
        self._caught_up_ms[replica.broker] = replica.caught_up_ms

    def _replica(self, connection: int) -> FollowerProgress:
        replica = self._replicas.get(connection)
        if replica is None:
            raise RemoteViolation("sent a frame before its handshake, or after a newer connection took its place")
        return replica

    def knows(self, connection: int) -> bool:
        """Whether the connection is a replica's present one; another must be closed."""
        return connection in self._replicas

    # -- the stream ---------------------------------------------------------------------------------------------------

    def demand(self, connection: int, end: int, *, has_paused: bool = False) -> tuple[int, int] | None:
        """Return (position, most bytes) of what the replica gets next; None when it has all, or when little waits.

        `has_paused`: the pause that `sent` announced is over.
        """
        replica = self._replicas.get(connection)
        if replica is None:
            return None
        if has_paused or replica.acknowledged >= end:
            replica.is_pausing = False
        if not 0 <= replica.sent < end:
            return None
        settings = self.settings
        if end - replica.sent < settings.small_bytes and (
            replica.is_pausing or len(replica.parts) >= settings.small_parts
        ):
            return None
        room = settings.window_bytes - (replica.sent - max(replica.acknowledged, replica.first))
        return (replica.sent, min(room, settings.part_bytes)) if room > 0 else None

    def sent(self, connection: int, length: int, end: int, now_ms: int) -> bool:
        """`length` bytes of a log that ends at `end` went to the replica; 0 for a heartbeat.

        Returns whether there is a pause now; the `demand` at its end says so.
        """
        replica = self._replicas[connection]
        replica.sent += length
        replica.sent_ms = now_ms
        if length and replica.sent == end:
            replica.parts.append(end)
        if replica.mark_end < 0:
            replica.mark_end, replica.mark_ms = end, now_ms
        if length >= self.settings.pause_bytes:
            replica.is_pausing = True
        return replica.is_pausing

    def heartbeats_due(self, now_ms: int) -> list[int]:
        """Return the connections that carried nothing for too long."""
        before = now_ms - self.settings.heartbeat_ms
        return [each.connection for each in self._replicas.values() if each.sent >= 0 and each.sent_ms <= before]

    def silent(self, now_ms: int) -> list[int]:
        """Return the connections that were silent for too long and are to be closed."""
        before = now_ms - self.settings.silence_ms
        return [each.connection for each in self._replicas.values() if each.heard_ms <= before]

    # -- what all of them have ----------------------------------------------------------------------------------------

    def advance(self, own_end: int) -> int:
        """Return the confirm position, with the master's own flushed end at `own_end`."""
        if self.majority is not None:
            ends = [each.acknowledged for each in self._counted(self.majority)]
            self.confirm_position = self.majority.confirmed(own_end, ends, self.epoch_start, self.confirm_position)
            return self.confirm_position
        members = self.members
        low = own_end
        if len(members.committed) < self.acknowledge.members_min or self.broker not in members.effective:
            return self.confirm_position
        for broker in members.effective:
            if broker != self.broker:
                replica = self._by_broker.get(broker)
                if replica is None:
                    return self.confirm_position
                low = min(low, replica.acknowledged)
        if low > self.confirm_position:
            self.confirm_position = low
        return self.confirm_position

    def limit(self, own_end: int) -> int | None:
        """Move the confirm position and return up to where messages count as taken, None for the local rule alone."""
        confirm = self.advance(own_end)
        return self.acknowledge.limit(own_end, self._in_sync_ends(), confirm)

    def _counted(self, majority: Majority) -> list[FollowerProgress]:
        """The replicas whose copies count for a majority."""
        return [each for each in self._replicas.values() if each.broker in majority.members and not each.is_learner]

    def _in_sync_ends(self) -> Iterator[int]:
        for broker in self.members.committed:
            replica = self._by_broker.get(broker)
            if replica is not None and replica.acknowledged >= 0:
                yield replica.acknowledged

    def presume_absent(self, broker: int) -> None:
        """Do not wait for a broker that the controllers replaced: it is absent until it connects."""
        if broker not in self._by_broker:
            self._gone_ms[broker] = self._started_ms - self.settings.absence_ms - 1

    def accepts(self, now_ms: int) -> bool:
        """Whether enough members can be reached, or were a moment ago, for an append to have a chance.

        A member that no connection was seen of in this epoch is on its way, until a stream would count as silent.
        """
        is_new = now_ms - self._started_ms <= self.settings.silence_ms
        reachable = 1 + sum(
            not self._absent(broker, now_ms) or (is_new and broker not in self._gone_ms)
            for broker in self.members.committed
            if broker != self.broker
        )
        return self.acknowledge.accepts(reachable)

    # -- who is in sync -----------------------------------------------------------------------------------------------

    def check(self, own_end: int, now_ms: int) -> Proposal | None:
        """Propose a new SyncStateSet when members lag or replicas have caught up; call it every heartbeat."""
        if self.majority is not None or self.members.open is not None or self.superseded:
            return None
        confirm = self.advance(own_end)
        committed = self.members.committed
        leaving = {broker for broker in committed if broker != self.broker and self._lags(broker, confirm, now_ms)}
        joining = {
            each.broker
            for each in self._replicas.values()
            if each.broker not in committed and not each.is_learner and self._caught_up(each, confirm)
        }
        wanted = (committed - leaving) | joining
        if leaving and len(wanted) < self.acknowledge.members_min:
            # So few could confirm nothing, and a member that left could not be elected: removing it gains nothing.
            return None
        if wanted == committed and not self.members.doubtful:
            return None
        return self.members.propose(wanted)

    def _caught_up(self, replica: FollowerProgress, confirm: int) -> bool:
        return replica.acknowledged >= confirm and replica.acknowledged >= self.epoch_start

    def _lags(self, broker: int, confirm: int, now_ms: int) -> bool:
        replica = self._by_broker.get(broker)
        if replica is None:
            return self._absent(broker, now_ms)
        if 0 <= replica.acknowledged < confirm:
            return True
        return now_ms - replica.caught_up_ms > self.settings.lag_ms

    def _absent(self, broker: int, now_ms: int) -> bool:
        if broker in self._by_broker:
            return False
        return now_ms - self._gone_ms.get(broker, self._started_ms) > self.settings.absence_ms

    # -- for metrics and status ---------------------------------------------------------------------------------------

    def replicas(self) -> list[FollowerProgress]:
        """The connected replicas."""
        return list(self._replicas.values())


def in_sync_of(leader: Leader) -> frozenset[int]:
    """The brokers that have all that is confirmed, as far as the leader knows."""
    majority = leader.majority
    if majority is None:
        return leader.members.committed
    low = max(leader.confirm_position, leader.epoch_start)
    counted = [each for each in leader.replicas() if each.broker in majority.members and not each.is_learner]
    return frozenset({leader.broker, *(each.broker for each in counted if each.acknowledged >= low)})


def catches_up(leader: Leader, connection: int) -> bool:
    """Whether a replica that may join the set has all that is confirmed now; True once for each of its connections."""
    for replica in leader.replicas():
        if replica.connection == connection and not replica.has_caught_up and not replica.is_learner:
            low = max(leader.confirm_position, leader.epoch_start)
            replica.has_caught_up = replica.acknowledged >= low
            return replica.has_caught_up
    return False
