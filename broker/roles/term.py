"""One master's time in office: the rules it leads by, what it does towards its replicas, and how that ends.

    rules   who is in sync at first, from where on its epoch counts, when a message is acknowledged
    begin   the former master counts as absent, replicas are served, the first record of an elected master, doubts
    check   twice soon after the begin, then at intervals; at once when a replica has caught up, or has been gone for
            so long that it counts as absent: propose another set in sync, confirm, resign where the log is damaged
    hand over, in order: begin nothing, wait until what was taken is confirmed, then ask for another master
    end     no doubts, no replicas, no checks

Invariants: nothing of the epoch is confirmed before replicas are served by its rules; each proposal is handed over
once, and none while another one is open; one whose outcome is not certain stays required until a set is learnt, and
after every outcome all is confirmed that the set then allows; a master resigns once, and only where another broker in
sync has all that is confirmed; nobody is served from a log that was opened with damage while another broker is in sync;
nothing is taken while a master hands over. Loop rule: the loop's thread. Pure: the world is that of `ReplicaStreams`,
its timers too, and the log one that is led, so the simulation runs this code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from broker.replication.host import ServedLog, WrittenLog
from broker.replication.leader import Acknowledge, Leader, LeaderSettings, Proposal, SyncStateSet
from broker.replication.majority import Majority
from broker.replication.replica_streams import ReplicaStreams
from broker.roles.steps import ControllerAnswer, KnownGroup, PauseWatch
from broker.store.state.state_kinds import MASTER_EPOCH, StateChange
from remoting.protocol.frames.codes import ResponseCode

TICKS = 10
"""Looks at the clock within the shortest pause that counts."""
FIRST_CHECK_S = 0.02
"""A new master checks the set after this time at first, and then when who has not come counts as absent: a member that
died with the former master leaves the set as soon as it may."""

CERTAIN = frozenset(
    {
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
    }
)
"""Answers by which the controllers have decided against a set. After any other error, a busy controller's among them,
they may have committed it or may do so yet."""

HAND_OVER_S = 1.0
"""A master that hands over waits so long until another broker is the master in its place, and half of that until the
replicas have confirmed what it took."""
SUMMONS = 20
"""How often it summons a successor in that time, in a group without controllers."""


class SettledLog(WrittenLog, Protocol):
    """A log that can go on without what its damaged ranges took."""

    def settle_damage(self) -> None:
        """Append what they took, as far as it is known."""
        ...


class LedLog(ServedLog, Protocol):
    """A log that is open for the epoch of its master."""

    @property
    def quarantined(self) -> Sequence[object]:
        """Its damaged ranges."""
        ...

    @property
    def replica(self) -> SettledLog:
        """Its bytes, epochs and first damage."""
        ...

    def append_state(self, changes: Sequence[StateChange]) -> int:
        """Append changes of durable state as one record; where it stands."""
        ...


@dataclass(frozen=True, slots=True)
class TermRules:
    """What every master of a group leads by."""

    cluster: str
    group: str
    acknowledge: Acknowledge
    """Where controllers keep the set in sync; elsewhere a majority acknowledges."""
    settings: LeaderSettings
    leader: Callable[..., Leader] = Leader
    members: Callable[[frozenset[int], int], SyncStateSet] = SyncStateSet

    def begin(self, broker: int, view: KnownGroup, store: LedLog, now_ms: int, majority: Majority | None) -> Leader:
        """What decides in the epoch that the log was opened for; `majority` confirms in a group without controllers."""
        return self.leader(
            broker,
            view.epoch,
            store.replica.epochs[-1][1],
            self.members(view.members | {broker}, view.set_epoch),
            self.acknowledge if majority is None else Acknowledge(in_sync_min=majority.size),
            self.settings,
            cluster=self.cluster,
            group=self.group,
            confirm=store.confirm_position,
            now_ms=now_ms,
            majority=majority,
        )


class TermOwner(Protocol):
    """The broker that is the master, as its term needs it."""

    def propose(self, proposal: Proposal) -> None:
        """Ask the controllers for this set, once; `concluded` of the term takes what came."""
        ...

    def ask_again(self) -> None:
        """The controllers have refused: there may be another master."""
        ...

    def doubt(self) -> None:
        """Another broker may be the master by now: what waits gets no answer."""
        ...

    def resign(self) -> None:
        """The log is damaged: let another broker be the master."""
        ...

    def stay(self) -> None:
        """The log was opened with damage, and no other broker is to be the master: serve."""
        ...


class SyncSetKeeper:
    """Of one master in one epoch."""

    def __init__(self, leader: Leader, streams: ReplicaStreams, log: Any) -> None:
        self.changes = 0
        """Sets learnt."""
        self._leader, self._streams, self._log = leader, streams, log

    def check(self, kept: int) -> Proposal | None:
        """What to propose while the log here is kept up to an end; None while the set is right or a proposal open."""
        return self._leader.check(kept, self._streams.now_ms())

    def learn(self, view: KnownGroup) -> bool:
        """The controllers have committed a set; False when it is not news."""
        leader, streams = self._leader, self._streams
        if view.epoch != leader.epoch or not leader.learn(view.members, view.set_epoch, streams.now_ms()):
            return False
        self.changes += 1
        self._log.info("sync_state_set", members=sorted(view.members), set_epoch=view.set_epoch)
        streams.close_strangers("replicas out of sync report their state again")
        streams.confirm()
        return True

    def refused(self, proposal: Proposal, code: int, remark: str) -> None:
        """The leading controller answered with an error."""
        if code not in CERTAIN:
            self.unanswered(proposal, remark)
            return
        self._log.info("sync_state_set_refused", members=sorted(proposal.members), remark=remark)
        self._leader.members.refused(proposal)
        self._streams.confirm()

    def unanswered(self, proposal: Proposal, why: str) -> None:
        """Nobody knows what became of it."""
        self._log.warning("sync_state_set_unanswered", members=sorted(proposal.members), error=why)
        self._leader.members.unanswered(proposal)
        self._streams.confirm()

    def in_doubt(self) -> None:
        """This broker stood still: what members sent before proves nothing, so they connect again."""
        for stream in list(self._streams.open.values()):
            stream.abort("the master stood still")


class MasterTerm:
    """Of one master in one epoch."""

    def __init__(
        self,
        leader: Leader,
        store: LedLog,
        streams: ReplicaStreams,
        pauses: PauseWatch,
        owner: TermOwner,
        log: Any,
        *,
        interval_ms: int,
    ) -> None:
        """`interval_ms`: between two checks while nothing happens."""
        self.leader = leader
        self.in_sync = SyncSetKeeper(leader, streams, log)
        self._store, self._streams, self._pauses, self._owner, self._log = store, streams, pauses, owner, log
        self.later, self._soon = streams.host.later, streams.host.soon
        self._intervals_s = [interval_ms / 1_000]
        """Before the next checks, the last one first; the first one stays."""
        self._wait = 0
        """The number of the pause before the next check."""
        self._is_due = self._has_resigned = self._is_over = False
        self.yields = bool(store.quarantined)
        """Whether clients wait for another master: this log was opened with damage, and another broker is in sync.

        That one becomes the master as soon as it follows, or leaves the set. Meanwhile nobody is served here: the
        damaged part may have told that an offset of a queue is taken, how far a reader is, or that there is a queue.
        """

    def begin(self, former: int | None) -> None:
        """Serve replicas; `former` was the master before: no other one would have been elected if it were there."""
        leader, streams = self.leader, self._streams
        if former is not None:
            leader.presume_absent(former)
        streams.lead(leader, self._store)
        if leader.majority is not None:
            # Nothing older is confirmed before this is: the first record of the epoch, which changes no state.
            self._store.append_state([StateChange(MASTER_EPOCH, b"", None)])
        self._pauses.lead(leader, self._in_doubt)
        streams.on_gone = lambda absence_ms: self.later(absence_ms / 1_000, self.due)
        streams.on_caught_up = self.due
        interval_s = self._intervals_s[0]
        self._intervals_s += [min(leader.settings.absence_ms / 1_000, interval_s), min(FIRST_CHECK_S, interval_s)]
        self._rest()
        self.later(self._pauses.limit_ms / 1_000 / TICKS, self._tick)
        if self.yields:
            self._log.warning("master_opened_damaged", position=self._store.replica.sound_end)
            self._stay_if_alone()

    def end(self) -> None:
        """Confirm nothing more."""
        self._is_over = True
        self._pauses.lead(None)
        self._streams.step_down("this broker is not the master any more")

    @property
    def has_ended(self) -> bool:
        """Whether this broker is the master no more, and the log perhaps closed."""
        return self._is_over

    def has_successor(self) -> bool:
        """Whether another broker in sync follows, which can be the master instead."""
        return any(each.broker in self.leader.members.committed for each in self.leader.replicas())

    def complete(self) -> list[int]:
        """Broker ids of those that have all of this log, and count for a majority."""
        end = self._store.end_position
        return [each.broker for each in self.leader.replicas() if each.acknowledged >= end and not each.is_learner]

    # -- what the controllers say --------------------------------------------------------------------------------------

    def learn(self, view: KnownGroup) -> bool:
        """They have committed a set; False when it is not news."""
        if self._is_over:
            return False
        is_news = self.in_sync.learn(view)
        self._stay_if_alone()
        self._decided()
        return is_news

    def concluded(self, proposal: Proposal, answer: ControllerAnswer) -> bool:
        """A proposal is answered, or never will be, and nobody knows what became of it; whether a set is news."""
        if answer.view is not None:
            return self.learn(answer.view)
        if self._is_over:
            return False
        if answer.code is None:
            self.in_sync.unanswered(proposal, answer.remark)
        else:
            self.in_sync.refused(proposal, answer.code, answer.remark)
            self._owner.ask_again()
        self._decided()
        return False

    def _decided(self) -> None:
        """What became due while a proposal was open is done now."""
        if self._is_due:
            self._soon(self._check_if_due)

    # -- checks --------------------------------------------------------------------------------------------------------

    def due(self) -> None:
        """Somebody has gone, or has caught up: check when the present turn ends."""
        if not self._is_due:
            self._is_due = True
            self._soon(self._check_if_due)

    def _check_if_due(self) -> None:
        if self._is_due and self.leader.members.open is None:
            self._check()

    def _rest(self) -> None:
        """Check after a pause, if nothing happens before."""
        self._wait += 1
        interval_s = self._intervals_s.pop() if len(self._intervals_s) > 1 else self._intervals_s[0]
        self.later(interval_s, partial(self._rested, self._wait))

    def _rested(self, wait: int) -> None:
        if wait == self._wait:
            self._check()

    def _check(self) -> None:
        if self._is_over:
            return
        self._is_due = self._is_due and self.leader.members.open is not None
        proposal = self.in_sync.check(self._store.positions.kept)
        if proposal is not None:
            self._owner.propose(proposal)
        self._streams.confirm()
        self._check_damage()
        self._rest()

    def _check_damage(self) -> None:
        """Let another broker be the master of a log that is damaged here, if one has all that is confirmed."""
        leader, store = self.leader, self._store
        if self._has_resigned or not store.quarantined:
            return
        committed, confirm = leader.members.committed, leader.confirm_position
        if any(each.broker in committed and each.acknowledged >= confirm for each in leader.replicas()):
            self._has_resigned = True
            self._log.error("master_log_damaged", position=store.replica.sound_end, end=store.end_position)
            self._owner.resign()

    def _stay_if_alone(self) -> None:
        """Serve with a damaged log where no other broker in sync can be the master."""
        if self.yields and len(self.leader.members.committed) == 1:
            self.yields = False
            self._log.warning("damaged_master_serves", reason="no other broker is in sync")
            self._store.replica.settle_damage()
            self._owner.stay()

    # -- doubts --------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._is_over:
            return
        if self._pauses.tick():
            self._log.info("still_the_master", by="members in sync", epoch=self.leader.epoch)
        self.later(self._pauses.limit_ms / 1_000 / TICKS, self._tick)

    def _in_doubt(self) -> None:
        """Waiting requests get no answer, and what members sent before proves nothing."""
        self._owner.doubt()
        self.in_sync.in_doubt()


class HandingBroker(Protocol):
    """The broker that is the master, as a hand-over needs it."""

    def suspend(self) -> None:
        """Carry out no request any more, and take no role; new requests wait."""
        ...

    def settle(self, settled: Callable[[], None]) -> None:
        """Call it when all that was taken is confirmed, or never will be."""
        ...

    def seek(self, successor: int | None) -> None:
        """Ask the controllers for another master, or where there are none summon this broker, if there is one.

        `TermHandOver.over` says what came.
        """
        ...

    def handed_over(self, why_not: str) -> None:
        """Another broker is the master, or it is not known that one is."""
        ...


class TermHandOver:
    """The end of a term in order, once."""

    def __init__(
        self, term: MasterTerm, broker: HandingBroker, to: int | None = None, *, limit_s: float = HAND_OVER_S
    ) -> None:
        """`to`: the one that is to be the master, where the members elect; None: whoever has everything."""
        self._term, self._broker, self._to, self._limit_s = term, broker, to, limit_s
        self._is_seeking = self._is_over = False

    def begin(self) -> None:
        """Take nothing more. Of the members, who may be the master next has everything only then."""
        self._broker.suspend()
        self._term.later(self._limit_s, partial(self.over, f"not done within {self._limit_s} s"))
        self._term.later(self._limit_s / 2, self._settled)
        self._broker.settle(self._settled)

    def over(self, why_not: str = "") -> None:
        """Another broker is the master, or what was asked has failed."""
        if not self._is_over:
            self._is_over = True
            self._broker.handed_over(why_not)

    def _settled(self) -> None:
        if not self._is_seeking:
            self._is_seeking = True
            self._seek()

    def _seek(self) -> None:
        if self._is_over:
            return
        if self._term.leader.majority is None:
            self._broker.seek(None)
            return
        if self._term.has_ended:  # its log may be closed; who leads next is heard
            return
        able = [each for each in self._term.complete() if self._to in (None, each)]
        self._broker.seek(able[0] if able else None)
        self._term.later(self._limit_s / SUMMONS, self._seek)
