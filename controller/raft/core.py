"""Raft as a pure core: messages and time in, a `RaftReady` out that says what to write, to send and to apply.

    step(now, sender, message), tick(now), propose(command), read(token)    what happened
    ready() -> RaftReady                                                        what is to be done about it
    advance(ready)                                                          it is done

The caller carries out a `RaftReady` in this order: send `early`; write snapshot, cut, entries and hard state and fsync
them; send `messages`; apply `committed`; answer `reads`; call `advance`. Nothing in `messages` may leave before the
disk has what the RaftReady names. A member whose files were empty at its start (`admitted` false) receives, and neither
votes nor acknowledges, because no majority may rest on what it forgot; the caller admits it.

Rules of Raft and DLedger's election: trial before every election, votes by the tables of `voting`, a leader that no
majority answers steps down (check-quorum), a no-op begins each term, reads by a round of heartbeats (ReadIndex),
members change one voter at a time, leadership can be handed over. Invariants: one vote and one leader a term; a
leader only appends; only a proven conflict cuts, never what is committed; the commit position never passes what this
leader has proven to be the same. Sans I/O: no clock, no files, no randomness but the function given. Thread rule:
none of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import IntEnum

from controller.raft.leading import Leading, StateSnapshot
from controller.raft.log import RaftLog
from controller.raft.membership import MemberHistory, Membership
from controller.raft.messages import (
    NO_OP,
    AppendAnswer,
    AppendEntries,
    Entry,
    Installed,
    InstallState,
    RaftMessage,
    StandNow,
    Voted,
    VoteRequest,
)
from remoting.protocol.errors import LightMQError, LocalMisuse, RemoteViolation
from remoting.protocol.voting import Ballot, CandidateVerdict, Tally, VoteAnswer, count, judge

STATE_BYTES_MAX = 256 * 1024 * 1024
"""Largest state that is taken from a leader."""


class Contradiction(LightMQError):
    """A leader contradicts what is committed here: a disk lost what it had promised, and nobody may go on."""


class RaftRole(IntEnum):
    """What a member is to the others at this moment."""

    FOLLOWER = 0
    TRIAL = 1
    """It asks whether it could be elected."""
    CANDIDATE = 2
    LEADER = 3


@dataclass(frozen=True, slots=True)
class RaftTimers:
    """The intervals of elections and heartbeats, in seconds."""

    heartbeat: float
    election: float
    """Shortest silence of a leader before another member asks whether it could lead; the longest is twice that."""
    fallback: float
    """A leader that no majority answered for so long steps down."""


@dataclass(frozen=True, slots=True)
class HardState:
    """What must be on disk before anything that shows it is sent."""

    term: int
    voted_for: str | None


@dataclass(slots=True)
class RaftReady:
    """What is to be done now; see the module for the order."""

    early: list[tuple[str, RaftMessage]] = field(default_factory=list)
    hard: HardState | None = None
    snapshot: StateSnapshot | None = None
    """Takes the place of log and state."""
    cut_from: int = 0
    entries: list[Entry] = field(default_factory=list)
    messages: list[tuple[str, RaftMessage]] = field(default_factory=list)
    committed: list[Entry] = field(default_factory=list)
    reads: list[tuple[Hashable, bool]] = field(default_factory=list)
    """(token, whether it may be answered), after `committed` is applied."""


@dataclass(slots=True)
class IncomingState:
    """A state that arrives in pieces."""

    index: int
    data: bytearray


class Raft:
    """One member of a group."""

    def __init__(
        self,
        node_id: str,
        timers: RaftTimers,
        hard: HardState,
        log: RaftLog,
        members: MemberHistory,
        random: Callable[[], float],
    ) -> None:
        """Take up what the disk had; `random` gives numbers in [0, 1)."""
        self.node_id = node_id
        self.log = log
        self.members = members
        self.role = RaftRole.FOLLOWER
        self.hard = hard
        self.leader: str | None = None
        self.leading: Leading | None = None
        self.admitted = True
        self.snapshot: StateSnapshot | None = None
        """The latest one on this member's disk."""
        self._work = _Work(saved=hard, handed=log.committed)
        self._election = _Election(timers, random)

    # ---- what happened

    def tick(self, now: float) -> None:
        """Act on the time: stand for election, send heartbeats, or step down."""
        election = self._election
        if not election.deadline:
            self._wait(now)
        if self.leading is not None:
            self._lead_on(now, self.leading)
        elif now >= election.deadline and self.admitted and self._may_lead:
            self._stand(now, trial=True)

    def step(self, now: float, sender: str, message: RaftMessage) -> None:
        """Take a message. Raises Contradiction, RemoteViolation."""
        if isinstance(message, VoteRequest):
            self._vote(now, sender, message)
            return
        granted_trial = isinstance(message, Voted) and message.trial and message.answer is VoteAnswer.ACCEPT
        if message.term > self.hard.term and not granted_trial:
            self._follow(now, message.term)
        if isinstance(message, AppendEntries | InstallState):
            self._serve(now, sender, message)
        elif isinstance(message, Voted):
            self._voted(now, sender, message)
        elif message.term == self.hard.term:
            if isinstance(message, StandNow) and self._may_lead and self.admitted:
                self._stand(now, trial=False, forced=True)
            elif self.leading is not None and isinstance(message, AppendAnswer):
                self.leading.appended(sender, message, now)
            elif self.leading is not None and isinstance(message, Installed):
                self.leading.installed(sender, message, now)

    def propose(self, command: bytes) -> tuple[int, int] | None:
        """Append a command; its (index, term), None when this member does not lead or hands over."""
        if self.leading is None or self.leading.heir:
            return None
        _, index, term = self.log.append(command, self.hard.term)
        return index, term

    def read(self, token: Hashable) -> bool:
        """Answer this reader in a later RaftReady; False when this member does not lead."""
        if self.leading is not None:
            self.leading.read(token)
        return self.leading is not None

    def change(self, now: float, members: Membership) -> tuple[int, int]:
        """Propose other members; (index, term) of the entry. Raises LocalMisuse when it is not possible now."""
        leading = self.leading
        if leading is None or leading.heir:
            raise LocalMisuse("only the leader changes the members")
        if self.log.committed < max(leading.began, self.members.index):
            raise LocalMisuse("the last change of the members, or this leader's first entry, is not committed yet")
        self.members.current.check_next(members)
        for each in set(members.voters) - set(self.members.current.voters):
            if not leading.caught_up(each):
                raise LocalMisuse(f"{each} does not have everything yet: it stays a learner until it has")
        entry = self.log.append(members.command(), self.hard.term)
        self.members.appended(entry)
        leading.use(members, now)
        return entry[1], entry[2]

    def hand_over(self, now: float, heir: str) -> None:
        """Hand leadership to a voter as soon as it has everything. Raises LocalMisuse."""
        if self.leading is None or heir == self.node_id or heir not in self.members.current.voters:
            raise LocalMisuse(f"leadership can be handed from the leader to another voter, not to {heir}")
        self.leading.heir = heir
        self._election.deadline = now + self._election.timers.election

    def connected(self, now: float, peer: str, *, connected: bool) -> None:
        """A connection was made or lost."""
        if self.leading is not None:
            self.leading.reconnected(peer)
        elif not connected and peer == self.leader:
            # It is most likely dead: ask soon, at random, instead of waiting for the silence to be long.
            self.leader, self._election.last_contact = None, 0.0
            soon = now + self._election.random() * self._election.timers.election / 2
            self._election.deadline = min(self._election.deadline, soon)

    def forget(self, snapshot: StateSnapshot) -> None:
        """The state after an applied entry is durable in a snapshot: what is before that entry is not needed."""
        self.snapshot = snapshot
        self.log.forget(snapshot.index)
        self.members.forget(snapshot.index)

    # ---- what is to be done

    def ready(self) -> RaftReady | None:
        """What is to be done now; None when there is nothing."""
        log, work = self.log, self._work
        hard = self.hard if self.hard != work.saved else None
        ready = RaftReady(hard=hard, snapshot=work.installed, cut_from=log.cut_from)
        ready.entries = log.entries(log.stable + 1, log.last_index + 1, 1 << 62) if log.stable < log.last_index else []
        if self.leading is not None:
            self.leading.commit()
            work.reads += [(token, True) for token, at in self.leading.reads.confirmed if at <= work.handed]
            self.leading.reads.confirmed = [each for each in self.leading.reads.confirmed if each[1] > work.handed]
            sent = self.leading.messages(self.snapshot)
            # A term that is not on disk yet is not shown; entries may be on their way while they are written here.
            (ready.messages if hard else ready.early).extend(sent)
        ready.messages += work.outbox
        end = min(log.committed, log.stable)
        if end > work.handed:
            ready.committed = log.entries(work.handed + 1, end + 1, 1 << 62)
        ready.reads, work.reads, work.outbox = work.reads, [], []
        return ready if ready != _NOTHING else None

    def advance(self, ready: RaftReady) -> None:
        """Everything that this RaftReady named is done."""
        if ready.hard is not None:
            self._work.saved = ready.hard
        if ready.snapshot is not None:
            self._work.installed = None
        self.log.cut_from = 0
        if ready.entries:
            _, index, term = ready.entries[-1]
            self.log.persisted(index, term)
        if ready.committed:
            self._work.handed = ready.committed[-1][1]

    # ---- elections

    def _wait(self, now: float, patience: int = 1) -> None:
        election = self._election
        election.deadline = now + election.timers.election * (patience + election.random())

    def _has_leader(self, now: float) -> bool:
        if self.leading is not None:
            return True
        return self.leader is not None and now - self._election.last_contact < self._election.timers.election

    @property
    def _may_lead(self) -> bool:
        """Whether it is a voter, or is one until a change commits that may still be cut.

        A leader that left may be the only one that has the entry: where it could not lead to commit that, the others,
        whose logs are shorter, would need its vote and never get it.
        """
        members, committed = self.members, self.log.committed
        agreed = members.current if members.index <= committed else members.at(committed)
        return self.node_id in {*members.current.voters, *agreed.voters}

    def _stand(self, now: float, *, trial: bool, forced: bool = False) -> None:
        """Ask for votes, first whether it would get them."""
        election = self._election
        self.leader = None
        self.role = RaftRole.TRIAL if trial else RaftRole.CANDIDATE
        if not trial:
            self.hard = HardState(self.hard.term + 1, self.node_id)
        election.answers = {self.node_id: VoteAnswer.ACCEPT}
        self._wait(now)
        term, index = self.log.place
        request = VoteRequest(self.hard.term + trial, index, term, trial, forced)
        for each in self.members.current.voters:
            if each != self.node_id:
                self._say(each, request)
        self._count(now)

    def _vote(self, now: float, sender: str, asked: VoteRequest) -> None:
        if not self.admitted:
            return  # it may have given this vote away before it lost its files
        ballot = Ballot(
            asked.term, (asked.last_term, asked.last_index), asked.trial, asked.forced, self.hard.term, self.log.place,
            self.hard.voted_for not in (None, sender), self._has_leader(now),
            self.role is RaftRole.TRIAL and self.node_id < sender,
        )  # fmt: skip
        answer = judge(ballot)
        if answer is VoteAnswer.ACCEPT and not asked.trial:
            if asked.term > self.hard.term:
                self._follow(now, asked.term)
            self.hard = HardState(asked.term, sender)
        if answer is VoteAnswer.ACCEPT:
            if self.role is RaftRole.TRIAL:
                self.role = RaftRole.FOLLOWER
            self._wait(now)
        term = asked.term if answer is VoteAnswer.ACCEPT else self.hard.term
        self._say(sender, Voted(term, answer, asked.trial))

    def _voted(self, now: float, sender: str, message: Voted) -> None:
        wanted = RaftRole.TRIAL if message.trial else RaftRole.CANDIDATE
        granted = message.answer is VoteAnswer.ACCEPT
        current = self.hard.term + (message.trial and granted)
        if self.role is wanted and (message.term == current or not granted):
            self._election.answers[sender] = message.answer
            self._count(now)

    def _count(self, now: float) -> None:
        tally = Tally(self._election.answers, frozenset(self.members.current.voters))
        verdict = count(tally)
        if verdict is CandidateVerdict.YIELD:
            self._wait(now, patience=2)
        if verdict in (CandidateVerdict.WAIT, CandidateVerdict.YIELD):
            self.role = RaftRole.FOLLOWER
        if verdict is not CandidateVerdict.PASSED:
            return
        if self.role is RaftRole.TRIAL:
            self._stand(now, trial=False)
        else:
            self.role, self.leader = RaftRole.LEADER, self.node_id
            self._election.answers = {}
            self._election.beat_due = now + self._election.timers.heartbeat
            self.leading = Leading(self.node_id, self.hard.term, self.log, self.members.current, now)
            self.log.append(NO_OP, self.hard.term)

    def _follow(self, now: float, term: int, leader: str | None = None) -> None:
        """Be a follower, in a later term or of a known leader."""
        if self.leading is not None:
            waiting = [*self.leading.reads.waiting, *self.leading.reads.confirmed]
            self._work.reads += [(each[0], False) for each in waiting]
            self.leading = None
        self.role, self.leader = RaftRole.FOLLOWER, leader
        self._work.incoming = None
        if term > self.hard.term:
            self.hard = HardState(term, None)
        self._wait(now)

    def _lead_on(self, now: float, leading: Leading) -> None:
        election, timers = self._election, self._election.timers
        gone = self.node_id not in self.members.current.voters and self.log.committed >= self.members.index
        if gone or not leading.majority_present_since(now - timers.fallback):
            self._follow(now, self.hard.term)
            return
        if leading.heir and now >= election.deadline:
            leading.heir = ""
        if leading.heir and leading.progress[leading.heir].match == self.log.last_index:
            self._say(leading.heir, StandNow(self.hard.term))
        if now >= election.beat_due:
            election.beat_due = now + timers.heartbeat
            leading.beat()

    # ---- following

    def _serve(self, now: float, sender: str, message: AppendEntries | InstallState) -> None:
        """Take entries or a piece of the state from a leader."""
        if message.term < self.hard.term:
            # Its term is over, which it must learn, or the two would ignore each other for ever. It may lead this one
            # by the time that it reads the answer, which is therefore true of this log too.
            self._say(sender, AppendAnswer(self.hard.term, 0, matched=False, index=self.log.last_index + 1))
            return
        if self.leader not in (None, sender):
            raise Contradiction(
                f"{self.leader} and {sender} both lead term {message.term}: some vote was given twice, as by a "
                f"directory that was copied or put back"
            )
        if self.leader != sender or self.role is not RaftRole.FOLLOWER:
            self._follow(now, message.term, sender)
        self._election.last_contact = now
        self._wait(now)
        number = message.round if self.admitted else 0
        answer = self._append(message, number) if isinstance(message, AppendEntries) else self._install(message, number)
        self._say(sender, answer)

    def _append(self, message: AppendEntries, number: int) -> AppendAnswer:
        log, before, entries = self.log, message.before_index, message.entries
        self.members.check(entries)
        if before < log.first_index:  # it is in the snapshot, like everything committed
            entries = [each for each in entries if each[1] > log.first_index]
            known = True
        else:
            known = log.term(before) == message.before_term
        if not known:
            term = log.term(before)
            if term is not None and before <= log.committed:
                raise Contradiction(f"the leader contradicts entry {before}, and {log.committed} is committed")
            index = log.last_index + 1 if term is None else log.first_of_term(before)
            index = max(index, log.committed + 1)
            return AppendAnswer(self.hard.term, number, matched=False, index=index, hint_term=term or 0, refused=before)
        conflict = log.conflict(entries)
        if conflict and conflict <= log.committed:
            raise Contradiction(f"the leader contradicts entry {conflict}, and {log.committed} is committed")
        if conflict:
            self.members.cut(conflict)
        for entry in log.follow(entries):
            self.members.appended(entry)
        end = max(before + len(message.entries), min(log.first_index, log.committed))
        log.committed = max(log.committed, min(message.committed, end))
        if not self.admitted:
            return AppendAnswer(self.hard.term, 0, matched=False, index=log.last_index + 1)
        return AppendAnswer(self.hard.term, number, matched=True, index=end)

    def _install(self, message: InstallState, number: int) -> AppendAnswer | Installed:
        work, log = self._work, self.log
        if message.index <= log.committed:
            work.incoming = None
            end = log.committed
            if not self.admitted:
                return AppendAnswer(self.hard.term, 0, matched=False, index=end + 1)
            return AppendAnswer(self.hard.term, number, matched=True, index=end)
        if message.whole > STATE_BYTES_MAX:
            raise RemoteViolation(f"the leader's state has {message.whole} bytes, at most {STATE_BYTES_MAX} are taken")
        if work.incoming is None or work.incoming.index != message.index:
            work.incoming = IncomingState(message.index, bytearray())
        data = work.incoming.data
        if message.offset == len(data):
            data += message.piece
        if len(data) < message.whole:
            return Installed(self.hard.term, number, message.index, len(data))
        work.arrived, work.incoming = bytes(data), None
        return Installed(self.hard.term, number, message.index, message.whole)

    @property
    def applied(self) -> int:
        """Last entry that was handed out in a RaftReady that is done."""
        return self._work.handed

    def arrived(self) -> bytes | None:
        """A whole state from the leader, once: the caller checks it and hands it to `install`."""
        data, self._work.arrived = self._work.arrived, None
        return data

    def install(self, snapshot: StateSnapshot) -> None:
        """Take a leader's state. What is behind it here stays if it follows."""
        log, work = self.log, self._work
        if snapshot.index <= log.committed:
            return
        work.installed = self.snapshot = snapshot
        if log.term(snapshot.index) == snapshot.term:
            log.committed = snapshot.index
            log.forget(snapshot.index)
            self.members.forget(snapshot.index)
        else:
            log.replace(snapshot.last)
            self.members.replace(snapshot.index, snapshot.members)
        work.handed = snapshot.index
        if self.leader is not None and self.admitted:
            self._say(self.leader, AppendAnswer(self.hard.term, 0, matched=True, index=snapshot.index))

    def _say(self, peer: str, message: RaftMessage) -> None:
        self._work.outbox.append((peer, message))


@dataclass(slots=True)
class _Election:
    """Timers and answers of elections."""

    timers: RaftTimers
    random: Callable[[], float]
    deadline: float = 0.0
    """When to stand; of a leader, when handing over has failed."""
    last_contact: float = 0.0
    """When the leader was last heard from."""
    beat_due: float = 0.0
    answers: dict[str, VoteAnswer] = field(default_factory=dict)


@dataclass(slots=True)
class _Work:
    """What waits for the next RaftReady."""

    saved: HardState
    handed: int
    """Last entry given to the machine."""
    outbox: list[tuple[str, RaftMessage]] = field(default_factory=list)
    reads: list[tuple[Hashable, bool]] = field(default_factory=list)
    installed: StateSnapshot | None = None
    incoming: IncomingState | None = None
    arrived: bytes | None = None


_NOTHING = RaftReady()
