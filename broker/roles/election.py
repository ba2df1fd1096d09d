"""The election among the brokers of a group: who votes for whom, who leads, and who may vote at all.

    FOLLOWER --silence--> TRIAL --a majority would--> CANDIDATE --a majority does--> LEADER
        ^                   |                             |                            |
        '---- refused, a leader's heartbeat, a later term, or no majority answers -----'

A term is a master epoch. The rules are those of the controllers' core (`remoting.protocol.voting`), over the place of
the commit log itself: the epoch of its last byte and its end. A trial comes before each election and changes nothing
anywhere. A leader that no majority has answered for `silence_ms` resigns: it raises its own term, so that it can never
lead in the old one again. A lost connection to the leader shortens the silence to one interval; a heartbeat that
arrives meanwhile undoes that. A leader that hands over summons a member that has its whole log: that one stands at
once, without a trial, and its call is forced: that they have a leader is no reason for voters to refuse it.

`VoterAdmission`: a broker whose directory is empty, or whose log was damaged, has forgotten what it promised. It
votes, and its copies count, once it has heard from all others that none has a log or a term (a new group), or once it
has heard from enough of the others to know every term it may have voted in, and has copied the log of a leader of that
term or a later one.

`GroupElection`: what questions, answers and the time mean for both, and what follows from it, in this order: nothing
is acknowledged to the master of an earlier term, the vote is on the disk, the role is wanted, the others are asked.

Invariants: one vote a term; `vote` is on the disk before anything that shows it is sent; a log that is behind raises no
term; one leader a term. Pure: the caller passes the time, the world is an `ElectionHost` and an `ElectorsLog`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from broker.replication.majority import majority_of
from broker.roles.steps import KnownGroup, ReplicaSteps
from remoting.protocol.bodies.election_body import Question, QuestionKind, Reply
from remoting.protocol.voting import Ballot, CandidateVerdict, Tally, VoteAnswer, count, judge

Place = tuple[int, int]
"""(epoch of the last byte, end of the log)."""

JOIN_MS = 200
"""How often a member that may not vote asks the others how far they are."""


class ElectionPhase(Enum):
    """What a member is to the others."""

    FOLLOWER = "follower"
    TRIAL = "trial"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class ElectionTimers:
    """Intervals of an election, in milliseconds."""

    heartbeat_ms: int = 100
    silence_ms: int = 1_000
    """A leader that was not heard for so long is missing; one that no majority answered for so long resigns."""
    interval_ms: int = 150
    """Shortest pause before a member stands for election; the longest is twice that."""


@dataclass(frozen=True, slots=True)
class OwnVote:
    """What must be on the disk before it is shown."""

    term: int = 0
    voted_for: str = ""


@dataclass(frozen=True, slots=True)
class ElectionCall:
    """A vote that is asked for, or (`beat`) a leader's heartbeat."""

    term: int
    trial: bool = False
    beat: bool = False
    forced: bool = False
    """The leader of the term before wants it."""


@dataclass(frozen=True, slots=True)
class VoteReply:
    """The answer to a vote."""

    term: int
    answer: VoteAnswer


class Elector:
    """One member's part in the elections of its group."""

    def __init__(
        self, own: str, members: frozenset[str], timers: ElectionTimers, vote: OwnVote, random: Callable[[], float]
    ) -> None:
        """Take up what the disk had; `random` gives numbers in [0, 1)."""
        self.own, self.members, self.timers = own, members, timers
        self.vote = vote
        self.phase = ElectionPhase.FOLLOWER
        self.leader = ""
        """Who leads in this term; empty while unknown."""
        self.outbox: list[ElectionCall] = []
        """What all others are to be asked, in order; the caller takes it out."""
        self._random = random
        self._deadline_ms = -1
        self._heard_ms = 0
        self._is_lost = False
        """Whether the connection to the leader was lost, and no heartbeat has come since."""
        self._answers: dict[str, VoteAnswer] = {}
        self._answered_ms: dict[str, int] = {}
        """When the latest heartbeat was sent that each of the others has answered."""
        self._beat_ms = self._stood_ms = 0

    @property
    def leads(self) -> bool:
        """Whether this member leads."""
        return self.phase is ElectionPhase.LEADER

    def outcome(self, epoch: int) -> str | None:
        """Who leads in the present term, "" for nobody; None for no news, where the newest role is of `epoch`."""
        if self.leader or (self.vote.term > epoch and self.vote.voted_for != self.own):
            return self.leader
        return None  # as a candidate it may be the master of this term yet

    @property
    def proven_ms(self) -> int:
        """A leader: when it was the leader for certain, because a majority answered what it sent then."""
        times = sorted(self._answered_ms.values(), reverse=True)
        needed = majority_of(len(self.members)) - 1
        return times[needed - 1] if needed else self._beat_ms

    # -- the time ------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int, *, may_stand: bool) -> None:
        """Act on the time: beat, resign, or stand for election."""
        if self._deadline_ms < 0:
            self._wait(now_ms, self._interval_ms())
        if self.leads:
            if now_ms - self.proven_ms > self.timers.silence_ms and len(self.members) > 1:
                self.resign(now_ms)
            elif now_ms - self._beat_ms >= self.timers.heartbeat_ms:
                self._beat_ms = now_ms
                self.outbox.append(ElectionCall(self.vote.term, beat=True))
        elif now_ms >= self._deadline_ms:
            if may_stand:
                self._stand(now_ms, trial=True)
            else:
                self._wait(now_ms, self._interval_ms())

    def resign(self, now_ms: int) -> None:
        """Lead no more; the others choose, with a later term."""
        if self.leads:
            self.vote = OwnVote(self.vote.term + 1)
            self._follow(now_ms, "")

    # -- votes ---------------------------------------------------------------------------------------------------------

    def asked(self, now_ms: int, sender: str, ask: ElectionCall, place: Place, own_place: Place) -> VoteReply:
        """Answer a request for a vote by a log that ends at `place`."""
        vote = self.vote
        has_leader = self.leads or (
            self.leader != "" and not self._is_lost and now_ms - self._heard_ms < self.timers.silence_ms
        )
        ballot = Ballot(
            term=ask.term,
            place=place,
            trial=ask.trial,
            forced=ask.forced and not ask.trial,
            own_term=vote.term,
            own_place=own_place,
            voted_for_another=vote.voted_for not in ("", sender),
            has_leader=has_leader,
            stands_first=self.phase is ElectionPhase.TRIAL and self.own < sender,
        )
        answer = judge(ballot)
        if answer is VoteAnswer.ACCEPT:
            if not ask.trial:
                self.vote = OwnVote(ask.term, sender)
                self._follow(now_ms, "")
            else:
                self.phase = ElectionPhase.FOLLOWER
            self._wait(now_ms, self.timers.silence_ms // 2 + self._interval_ms())
        return VoteReply(ask.term if answer is VoteAnswer.ACCEPT else self.vote.term, answer)

    def answered(self, now_ms: int, sender: str, ask: ElectionCall, granted: VoteReply) -> None:
        """Take the answer to what this member asked."""
        accepted = granted.answer is VoteAnswer.ACCEPT
        if granted.term > self.vote.term and not (ask.trial and accepted):
            self.vote = OwnVote(granted.term)
            self._follow(now_ms, "")
            return
        wanted = ElectionPhase.TRIAL if ask.trial else ElectionPhase.CANDIDATE
        if self.phase is wanted and ask.term == self.vote.term + ask.trial:
            self._answers[sender] = granted.answer
            self._count(now_ms)

    def summoned(self, now_ms: int, sender: str, term: int) -> None:
        """The leader wants this member in its place."""
        if not self.leads and sender == self.leader and term == self.vote.term:
            self._stand(now_ms, trial=False, forced=True)

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def beaten(self, now_ms: int, sender: str, term: int) -> bool:
        """A leader's heartbeat; whether this member follows it. Two leaders of one term cannot be: it is refused."""
        if term < self.vote.term or (term == self.vote.term and self.leader not in ("", sender)):
            return False
        if term > self.vote.term:
            self.vote = OwnVote(term)
        self._follow(now_ms, sender)
        return True

    def beat_answered(self, now_ms: int, sender: str, term: int, sent_ms: int, *, votes: bool) -> None:
        """The answer to a heartbeat that was sent at `sent_ms`, from a member in `term`.

        One that does not vote is no proof of a majority, but what it says of a later term counts: it has stood in vain
        before it lost its vote, follows no leader of an earlier term, and cannot stand to make that known.
        """
        if term > self.vote.term:
            self.vote = OwnVote(term)
            self._follow(now_ms, "")
        elif votes and self.leads and term == self.vote.term:
            self._answered_ms[sender] = max(sent_ms, self._answered_ms.get(sender, 0))

    def lost(self, now_ms: int, peer: str) -> None:
        """The connection to a member was lost: a leader is most likely dead."""
        if peer == self.leader and not self.leads:
            self._is_lost = True
            self._deadline_ms = min(self._deadline_ms, now_ms + self._interval_ms())

    # -- within --------------------------------------------------------------------------------------------------------

    def _stand(self, now_ms: int, *, trial: bool, forced: bool = False) -> None:
        self._wait(now_ms, 2 * self._interval_ms())
        if not trial:
            self.vote, self.leader, self._stood_ms = OwnVote(self.vote.term + 1, self.own), "", now_ms
        self.phase = ElectionPhase.TRIAL if trial else ElectionPhase.CANDIDATE
        self._answers = {self.own: VoteAnswer.ACCEPT}
        self.outbox.append(ElectionCall(self.vote.term + trial, trial=trial, forced=forced))
        self._count(now_ms)

    def _count(self, now_ms: int) -> None:
        verdict = count(Tally(self._answers, self.members))
        if verdict is CandidateVerdict.PASSED:
            if self.phase is ElectionPhase.TRIAL:
                self._stand(now_ms, trial=False)
            else:
                self._lead(now_ms)
        elif verdict is not CandidateVerdict.OPEN:
            self.phase = ElectionPhase.FOLLOWER
            self._wait(now_ms, self._interval_ms() * (2 if verdict is CandidateVerdict.YIELD else 1))

    def _lead(self, now_ms: int) -> None:
        self.phase, self.leader, self._is_lost = ElectionPhase.LEADER, self.own, False
        self._answered_ms = dict.fromkeys(self.members - {self.own}, self._stood_ms)
        self._beat_ms = now_ms
        self.outbox.append(ElectionCall(self.vote.term, beat=True))

    def _follow(self, now_ms: int, leader: str) -> None:
        self.phase, self.leader, self._is_lost = ElectionPhase.FOLLOWER, leader, False
        self._heard_ms = now_ms
        self._wait(now_ms, (self.timers.silence_ms if leader else 0) + self._interval_ms())

    def _wait(self, now_ms: int, pause_ms: int) -> None:
        self._deadline_ms = now_ms + pause_ms

    def _interval_ms(self) -> int:
        return int(self.timers.interval_ms * (1 + self._random()))


class VoterAdmission:
    """Whether a member may vote, and how one that forgot what it had promised comes to."""

    def __init__(self, own: str, members: frozenset[str], *, admitted: bool, join_ms: int = JOIN_MS) -> None:
        self.admitted = admitted
        self._join_ms = join_ms
        self._others = members - {own}
        self._majority = majority_of(len(members))
        self._heard: dict[str, tuple[int, Place]] = {}
        """Term and place of each of the others, as told since this broker has to be admitted."""
        self._voters: set[str] = set()
        """Those of them that vote."""
        self._goal: tuple[int, int] = (0, -1)
        """Term, and end of the log of its leader when it was heard first."""
        self._asked_ms = -join_ms

    def asks(self, now_ms: int) -> bool:
        """Whether to ask the others now how far they are."""
        is_due = now_ms - self._asked_ms >= self._join_ms
        if is_due:
            self._asked_ms = now_ms
        return is_due

    def forget(self) -> None:
        """The log has lost something: begin again."""
        self.admitted = False
        self._heard.clear()
        self._voters.clear()
        self._goal = (0, -1)

    def reported(self, peer: str, term: int, place: Place, *, votes: bool) -> None:
        """One of the others is in this term, and its log ends at this place; `votes`: whether it may."""
        if peer in self._others:
            (self._voters.add if votes else self._voters.discard)(peer)
            self._heard[peer] = max(self._heard.get(peer, (0, (0, 0)))[0], term), place

    def founds(self, vote: OwnVote, own_place: Place) -> bool:
        """Whether the group is new: all others are known, and nobody has voted or has a log.

        A majority would not do: two of three whose disks were lost or are new would forget what the third one has.
        """
        fresh = vote == OwnVote() and own_place[1] == 0
        others = self._heard.values()
        return fresh and len(others) == len(self._others) and all(term == 0 == place[1] for term, place in others)

    def catches_up(self, term: int, leader_end: int, own_end: int) -> bool:
        """Whether all that a leader had when it was heard first is here; the log has to be a part of the leader's.

        A vote that was forgotten was given in a term that a majority knows, the candidate included; so many of the
        others that they share a member with every such majority are to be heard.
        """
        if self._goal[0] != term:
            self._goal = (term, leader_end)
        known = [self._heard[each][0] for each in self._voters]
        enough = len(known) >= min(self._majority, len(self._others))
        return enough and max(known, default=0) <= term and own_end >= self._goal[1]


class ElectorsLog(Protocol):
    """A member's log and the stream that fills it."""

    def place(self) -> Place:
        """Where the log ends."""
        ...

    def copied(self, epoch: int) -> int:
        """Up to where the log is that of the master of `epoch`, on this disk; -1 while that is not known."""
        ...

    def is_sound(self) -> bool:
        """Whether no damage of the log is known."""
        ...

    def fence(self, epoch: int) -> None:
        """Acknowledge nothing to the master of an earlier epoch from now on."""

    def count_copies(self, *, counted: bool) -> None:
        """Whether what is copied here from now on counts for the majority."""


class ElectionHost(Protocol):
    """A member's disk, its lines to the others and its roles."""

    @property
    def saved_vote(self) -> OwnVote:
        """The vote on the disk."""

    def save_vote(self, vote: OwnVote) -> None:
        """Write it; it is on the disk on return."""

    def save_admitted(self, *, admitted: bool, reason: str) -> None:
        """The same for whether this member votes."""

    def addresses(self) -> tuple[str, str]:
        """Where clients and replicas reach this member."""
        ...

    def ask(self, kind: QuestionKind, call: ElectionCall, *, only: str = "") -> None:
        """Ask all others, or `only` one, as far as they can be reached."""

    def proved(self, term: int, proven_ms: int) -> None:
        """This member was the leader at that time for certain: what `PauseWatch.confirmed` needs."""

    def report(self, view: KnownGroup) -> None:
        """Give what is known of the group to the roles."""

    def taken(self) -> None:
        """Another member leads: what hands over to one is done."""

    def drop(self) -> None:
        """Take no role that was wanted so far."""


class GroupElection:
    """One member among the others of its group."""

    def __init__(
        self,
        elector: Elector,
        admission: VoterAdmission,
        steps: ReplicaSteps,
        log: ElectorsLog,
        host: ElectionHost,
        ids: Mapping[str, int],
    ) -> None:
        """`ids`: the broker id of each member."""
        self.elector, self.admission = elector, admission
        self._steps, self._log, self._host, self._ids = steps, log, host, ids
        self._leader_addresses = ("", "")
        self._register(0)

    def tick(self, now_ms: int) -> None:
        """Join, beat, resign, or stand for election, as it is time for."""
        is_voter = self.admission.admitted
        if not is_voter:
            self._join(now_ms)
        self.elector.tick(now_ms, may_stand=is_voter and self._log.is_sound())
        self.settle()

    def asked(self, now_ms: int, question: Question) -> Reply:
        """Answer another member."""
        elector, admission, sender, term = self.elector, self.admission, question.sender, question.term
        place, kind = self._log.place(), question.kind
        if not question.trial:
            admission.reported(sender, term, question.place, votes=kind is not QuestionKind.JOIN)
        granted: VoteReply | None = None
        if kind is QuestionKind.VOTE and admission.admitted:
            call = ElectionCall(term, trial=question.trial, forced=question.forced)
            granted = elector.asked(now_ms, sender, call, question.place, place)
        elif kind is QuestionKind.SUMMON and admission.admitted and self._log.is_sound():
            elector.summoned(now_ms, sender, term)
        elif kind is QuestionKind.BEAT and elector.beaten(now_ms, sender, term):
            self._leader_addresses = question.address, question.ha_address
            self._catch_up(term, question.place[1])
        granted = granted or VoteReply(elector.vote.term, VoteAnswer.ACCEPT)
        self.settle()
        return Reply(
            term=granted.term, place=place, asked_ms=question.asked_ms, answer=granted.answer, votes=admission.admitted
        )

    def answered(self, now_ms: int, name: str, kind: QuestionKind, call: ElectionCall, reply: Reply) -> None:
        """Take another member's answer to what it was asked."""
        elector = self.elector
        if not call.trial:
            self.admission.reported(name, reply.term, reply.place, votes=reply.votes)
        if kind is QuestionKind.BEAT:
            elector.beat_answered(now_ms, name, reply.term, reply.asked_ms, votes=reply.votes)
            if elector.leads:
                self._host.proved(elector.vote.term, elector.proven_ms)
        elif kind is QuestionKind.VOTE and reply.votes:
            elector.answered(now_ms, name, call, VoteReply(reply.term, reply.answer))
        self.settle()

    def summon(self, name: str) -> None:
        """As the leader: want this member in its place; nobody if it is empty, so that one comes to stand by itself."""
        if self.elector.leads and name:
            self._host.ask(QuestionKind.SUMMON, ElectionCall(self.elector.vote.term), only=name)

    def lost_something(self, now_ms: int) -> None:
        """The log was found damaged: this member votes, and is counted, once it has copied what it lost."""
        self.admission.forget()
        self._host.save_admitted(admitted=False, reason="the log is damaged")
        self._log.count_copies(counted=False)
        self.elector.resign(now_ms)
        self._host.drop()
        self._steps.lost_something(now_ms)
        self._register(now_ms)

    def settle(self) -> None:
        """After anything that happened: the disk first, then this broker's role, then the others."""
        elector, host = self.elector, self._host
        self.save()
        self._publish()
        asks, elector.outbox = elector.outbox, []
        for ask in asks:
            if ask.term >= elector.vote.term:
                host.ask(QuestionKind.BEAT if ask.beat else QuestionKind.VOTE, ask)

    def save(self) -> None:
        """Have the vote on the disk."""
        vote, saved = self.elector.vote, self._host.saved_vote
        if vote == saved:
            return
        if vote.term > saved.term:
            self._log.fence(vote.term)
        self._host.save_vote(vote)

    def _publish(self) -> None:
        elector = self.elector
        leader = elector.outcome(self._steps.epoch)
        if leader is None:
            return
        if leader and not elector.leads:
            self._host.taken()
        addresses = self._host.addresses() if elector.leads else self._leader_addresses if leader else ("", "")
        members = frozenset(self._ids.values())
        self._host.report(KnownGroup(elector.vote.term, self._ids[leader] if leader else None, *addresses, members))

    def _join(self, now_ms: int) -> None:
        if self.admission.founds(self.elector.vote, self._log.place()):
            self._admit("the group is new")
        elif self.admission.asks(now_ms):
            self._host.ask(QuestionKind.JOIN, ElectionCall(self.elector.vote.term))

    def _catch_up(self, term: int, leader_end: int) -> None:
        if self.admission.admitted:
            return
        end = self._log.copied(term)
        if end >= 0 and self.admission.catches_up(term, leader_end, end):
            self._admit("the master's log is copied")

    def _admit(self, reason: str) -> None:
        self.admission.admitted = True
        self._host.save_admitted(admitted=True, reason=reason)
        self._log.count_copies(counted=True)

    def _register(self, now_ms: int) -> None:
        """Roles may be taken: there is nobody to register at."""
        self._steps.found_leader(now_ms)
        self._steps.registered(now_ms)
