"""One member of the controllers' Raft group: the pure core with its files, its machine and its admission.

Calls say what happened; `settle` carries out what the core says is to be done about it, once for many calls: files are
fsynced before anything is sent that rests on them, what is committed is applied in order, and the callers of `propose`
and `read` are answered. A member whose directory was empty asks the others before it votes (`Admission`), unless the
log names its directory as a newcomer's (`Roster`).

    journal, snapshot, vote     as `journal.py` lays them out; the same files as the other engine's

Invariant: a failed write leaves this node unusable: what the kernel keeps after a failed fsync is not known, so the
error goes through to the caller, who ends it. No network and no clock: time comes with each call. Thread rule: one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import replace

from controller.consensus.admission import Admission
from controller.consensus.engine import FIRST_ENTRY, JOURNAL_FILE, SNAPSHOT_FILE, VOTE_FILE, Machine
from controller.consensus.journal import Journal, RaftSnapshot, Vote, load, pack, save, unpack
from controller.consensus.roster import Introduction, Roster
from controller.raft.core import HardState, Raft, RaftReady, RaftRole, RaftTimers
from controller.raft.leading import StateSnapshot
from controller.raft.log import RaftLog
from controller.raft.membership import MemberHistory, MemberPlace, Membership, decode_members
from controller.raft.messages import (
    CONFIGURATION,
    REGULAR,
    AppendAnswer,
    AppendEntries,
    Founded,
    Join,
    JoinReply,
    RaftMessage,
)
from remoting.protocol.errors import LocalMisuse, RemoteViolation


class Fate(IntEnum):
    """What became of a command or a reader."""

    DONE = 0
    NOT_LEADING = 1
    """Nothing was applied."""
    UNKNOWN = 2
    """It may have been applied, or may be later."""


Done = Callable[[object, Fate], object]


class MemberFiles:
    """Journal, snapshot and vote of one member."""

    def __init__(self, directory: Path, members: tuple[str, ...], identity: str) -> None:
        """Open them; `identity` becomes that of a directory without one. Raises LocalMisuse, OSError."""
        self._directory = directory
        self.journal = Journal(directory / JOURNAL_FILE)
        if not len(self.journal):
            self.journal.add(FIRST_ENTRY)
            self.journal.sync()
        self.snapshot = load(directory / SNAPSHOT_FILE, RaftSnapshot)
        end = self.journal[-1][1]
        vote = load(directory / VOTE_FILE, Vote)
        known = end if self.snapshot is None else max(end, self.snapshot.last[1])
        if vote is not None and known < vote.committed:
            raise LocalMisuse(
                f"{self.journal.path} ends at entry {end}, but {vote.committed} was committed: with other controllers "
                f"alive, empty this one's data directory and let it catch up"
            )
        # A directory with entries and without a vote was copied from another controller.
        self.vote = vote or Vote(members=members, voter=end > FIRST_ENTRY[1])
        self.copied = vote is None and self.vote.voter
        self.vote.identity = self.vote.identity or identity
        if self.snapshot is not None:
            self._follow(self.snapshot)
        elif self.journal[0][1] != FIRST_ENTRY[1]:
            raise LocalMisuse(
                f"{self.journal.path} does not begin with entry 1 and there is no snapshot: with other controllers "
                f"alive, empty this one's data directory and let it catch up"
            )
        self.keep_vote(self.vote.term, self.vote.voted_for, voter=self.vote.voter)

    def keep_vote(self, term: int, voted_for: str | None, *, voter: bool, applied: int = 0) -> None:
        """Remember these, durably, and how far the log is applied, which it must never end before."""
        self.vote.committed = max(self.vote.committed, applied)
        self.vote.term, self.vote.voted_for, self.vote.voter = term, voted_for, voter
        save(self._directory / VOTE_FILE, self.vote)

    def keep_snapshot(self, snapshot: RaftSnapshot) -> None:
        """Replace the snapshot durably, then leave out of the journal what it holds."""
        save(self._directory / SNAPSHOT_FILE, snapshot)
        self.snapshot = snapshot
        self._follow(snapshot)

    def keep(self, cut_from: int, entries: list[tuple[bytes, int, int]]) -> None:
        """Cut the journal before an entry, if it is named, and add others, durably."""
        if cut_from:
            self.journal.cut_tail(max(0, cut_from - self.journal[0][1]))
        for entry in entries:
            self.journal.add(entry)
        self.journal.sync()

    def _follow(self, snapshot: RaftSnapshot) -> None:
        journal = self.journal
        place = snapshot.last[1] - journal[0][1]
        if 1 <= place < len(journal) and journal[place][1:] == snapshot.last[1:]:
            journal.cut_head(place - 1)
        elif not (0 <= place < len(journal) and journal[place][1:] == snapshot.last[1:]):
            journal.replace([snapshot.before, snapshot.last])


class DledgerNode:
    """One controller's Raft."""

    def __init__(
        self,
        directory: Path,
        node_id: str,
        members: tuple[str, ...],
        machine: Machine,
        timers: RaftTimers,
        send: Callable[[str, RaftMessage], object],
        random: Callable[[], float],
        *,
        snapshot_entries: int,
        places: Mapping[str, MemberPlace] = MappingProxyType({}),
        identity: str = "",
    ) -> None:
        """Restore what a directory has. Raises LocalMisuse, OSError.

        `places` are the configured ones; `identity` becomes that of a directory without one, and without any the log
        says nothing about directories.
        """
        self.snapshots = 0
        self._machine = machine
        self._send = send
        self._snapshot_entries = snapshot_entries
        self._files = MemberFiles(directory, members, identity)
        self._configured = Membership(members)
        self._others = tuple(each for each in members if each != node_id)
        self._admission = Admission(self._others, timers.election)
        self._waiting: dict[int, tuple[int, Done]] = {}
        """Commands by their index, with their term."""
        self.raft = self._restore(node_id, timers, random)
        self.raft.admitted = self._files.vote.voter
        own = places.get(node_id) or MemberPlace(node_id, "", 0, 0)
        own = replace(own, identity=self._files.vote.identity)
        self.roster = Roster(self.raft, own, places, copied=self._files.copied)
        self.roster.group = self._files.vote.group
        self._keep_group(self.roster.agreed)  # a snapshot's, in a directory of an earlier release
        self.turned_away: dict[str, str] = {}
        """Why members have ended the connection with this one."""

    @property
    def leads(self) -> bool:
        """Whether this node leads and its machine has everything that was committed before."""
        leading = self.raft.leading
        return leading is not None and self.applied >= leading.began

    @property
    def obstacle(self) -> str:
        """What keeps this node from voting; empty when it votes."""
        if self.turned_away and self.raft.leader is None:
            return next(iter(self.turned_away.values()))
        return "" if self.raft.admitted else self._admission.obstacle()

    @property
    def applied(self) -> int:
        """Last entry that the machine has."""
        return self.raft.applied

    @property
    def log_entries(self) -> int:
        """Entries in the journal."""
        return len(self._files.journal)

    def tick(self, now: float) -> None:
        """Act on the time; a member that may not vote yet asks the others for admission."""
        if not self.raft.admitted:
            self._seek_admission(now)
        self.raft.tick(now)
        due = self.roster.due()
        if due is not None:
            self.raft.change(now, due)

    def take(self, now: float, sender: str, message: RaftMessage) -> None:
        """Take a message of a member. Raises RemoteViolation, Contradiction, OSError."""
        if isinstance(message, Join):
            term, index = self.raft.log.place
            refusal = self.roster.refusal(sender)
            reply = JoinReply(self.raft.hard.term, message.round, self.raft.admitted, index, term, refusal)
            self._send(sender, reply)
        elif isinstance(message, JoinReply):
            if not self.raft.admitted:
                self._admission.answered(sender, message)
                self._found(now)
        elif isinstance(message, Founded):
            self._admit()
        else:
            if isinstance(message, AppendEntries | AppendAnswer):
                self.roster.showed(sender, message.term)
            self.raft.step(now, sender, message)
            self._take_state()
            if isinstance(message, AppendEntries) and (self.roster.is_named or self._has_all(message)):
                self._admit()

    def propose(self, command: bytes, done: Done) -> None:
        """AppendEntries a command; `done(answer, fate)` follows."""
        place = self.raft.propose(command)
        if place is None:
            done(None, Fate.NOT_LEADING)
        else:
            self._waiting[place[0]] = place[1], done

    def change(self, now: float, members: Membership, done: Done) -> None:
        """Propose other members; `done(None, fate)` follows. Raises LocalMisuse."""
        index, term = self.raft.change(now, members)
        self._waiting[index] = term, done

    def hand_over(self, now: float, connected: Collection[str] = ()) -> str:
        """Hand the lead to the voter that has most, if possible a connected one; its id. Raises LocalMisuse."""
        leading = self.raft.leading
        voters = [each for each in self.raft.members.current.voters if each != self.raft.node_id]
        if leading is None or not voters:
            raise LocalMisuse("there is no other controller that could lead")
        heir = max(voters, key=lambda each: (each in connected, leading.progress[each].match, each))
        self.raft.hand_over(now, heir)
        return heir

    def introduced(self, peer: str, said: Introduction) -> str:
        """A peer says who it is; why it must not be connected, else empty."""
        self.turned_away.pop(peer, None)
        return self.roster.introduced(peer, said)

    def refused(self, peer: str, reason: str) -> None:
        """A peer has said why it ends the connection."""
        self.turned_away[peer] = reason
        self._admission.turned_away()

    def read(self, done: Done) -> None:
        """Call `done` when the machine has everything that was committed anywhere before this call."""
        if not self.raft.read(done):
            done(None, Fate.NOT_LEADING)

    def connected(self, now: float, peer: str, *, connected: bool) -> None:
        """A connection was made or lost."""
        if connected:
            self._admission.interrupt()
        else:
            self.roster.left(peer)
        self.raft.connected(now, peer, connected=connected)

    def settle(self) -> None:
        """Write, send, apply and answer what follows from everything that was told since the last call."""
        raft = self.raft
        while (ready := raft.ready()) is not None:
            for peer, message in ready.early:
                self._send(peer, message)
            self._write(ready)
            for peer, message in ready.messages:
                self._send(peer, message)
            for entry in ready.committed:
                self._apply(entry)
            raft.advance(ready)
            for token, granted in ready.reads:
                assert callable(token)
                token(None, Fate.DONE if granted else Fate.NOT_LEADING)
        if raft.role is not RaftRole.LEADER:
            self.abandon()
        self._compact()

    def abandon(self) -> None:
        """Tell everybody who waits that the outcome is not known here."""
        waiting, self._waiting = self._waiting, {}
        for _, done in waiting.values():
            done(None, Fate.UNKNOWN)

    def close(self) -> None:
        """Close the journal; the other files are open only while they are written."""
        self._files.journal.close()

    # ---- what the core says

    def _write(self, ready: RaftReady) -> None:
        files = self._files
        if ready.snapshot is not None:
            snapshot = unpack(ready.snapshot.data, RaftSnapshot, "a snapshot of the leader")
            files.keep_snapshot(snapshot)
            self._machine.restore(snapshot.state)
            self._keep_group(ready.snapshot.members)
        if ready.hard is not None:
            files.keep_vote(ready.hard.term, ready.hard.voted_for, voter=self.raft.admitted, applied=self.applied)
        if ready.cut_from or ready.entries:
            files.keep(ready.cut_from, ready.entries)

    def _apply(self, entry: tuple[bytes, int, int]) -> None:
        command, index, term = entry
        if command[:1] == CONFIGURATION:
            self._keep_group(decode_members(command))
        answer = self._machine.apply(command[1:]) if command[:1] == REGULAR else None
        of_term, done = self._waiting.pop(index, (0, None))
        if done is not None:
            done(answer, Fate.DONE if of_term == term else Fate.UNKNOWN)

    def _keep_group(self, members: Membership) -> None:
        """Remember, durably, to which group this directory belongs, from the first committed entry that says it."""
        vote = self._files.vote
        if members.group and not vote.group:
            vote.group = self.roster.group = members.group
            self._files.keep_vote(vote.term, vote.voted_for, voter=vote.voter)

    # ---- snapshots

    def _compact(self) -> None:
        """Write a snapshot when enough was applied since the last, and leave out what it holds."""
        raft, journal = self.raft, self._files.journal
        place = self.applied - journal[0][1]
        if place < max(self._snapshot_entries, 1):
            return
        members = raft.members.at(self.applied).command() if raft.members.index else b""
        snapshot = RaftSnapshot(journal[place - 1], journal[place], self._machine.encode(), members)
        self._files.keep_snapshot(snapshot)
        self.snapshots += 1
        raft.forget(self._as_core(snapshot))

    def _as_core(self, snapshot: RaftSnapshot) -> StateSnapshot:
        members = decode_members(snapshot.members) if snapshot.members else self._configured
        return StateSnapshot(snapshot.last, members, pack(snapshot))

    def _take_state(self) -> None:
        data = self.raft.arrived()
        if data is None:
            return
        try:
            snapshot = unpack(data, RaftSnapshot, "a snapshot of the leader")
        except LocalMisuse as error:
            raise RemoteViolation(str(error)) from error
        self.raft.install(self._as_core(snapshot))

    def _restore(self, node_id: str, timers: RaftTimers, random: Callable[[], float]) -> Raft:
        files, members = self._files, self._configured
        snapshot, committed, since = files.snapshot, FIRST_ENTRY[1], 0
        if snapshot is not None:
            committed = snapshot.last[1]
            self._machine.restore(snapshot.state)
            if snapshot.members:
                members, since = decode_members(snapshot.members), committed
        known = MemberHistory(since, members)
        log = RaftLog((each for each in files.journal.part(0) if each[1] >= committed), committed)
        for entry in log.entries(committed + 1, log.last_index + 1, 1 << 62):
            known.appended(entry)
        hard = HardState(files.vote.term, files.vote.voted_for)
        raft = Raft(node_id, timers, hard, log, known, random)
        if snapshot is not None:
            raft.forget(StateSnapshot(snapshot.last, known.at(committed), pack(snapshot)))
        return raft

    # ---- an empty directory

    def _seek_admission(self, now: float) -> None:
        """Ask all how far they are once per election timeout, and at once when another one is connected."""
        if self._admission.due(now) and not self._found(now):
            question = Join(self.raft.hard.term, self._admission.begin(now))
            for each in self._others:
                self._send(each, question)

    def _found(self, now: float) -> bool:
        """Begin a log with the other newcomers if that is allowed."""
        founders = self._admission.founders(now, self.raft.log.last_index)
        if founders:
            self._admit()
        for each in founders:
            self._send(each, Founded(self.raft.hard.term))
        return bool(founders)

    def _has_all(self, message: AppendEntries) -> bool:
        """Whether everything this leader has committed is here, up to an entry of its own term."""
        log = self.raft.log
        if self.raft.admitted:
            return False
        here = message.committed <= log.committed and log.term(message.committed) == message.term
        return here and self._admission.may_join(message.term)

    def _admit(self) -> None:
        """Vote from now on, but for nobody else in a term in which this member follows a leader."""
        raft = self.raft
        if raft.admitted:
            return
        raft.hard = HardState(raft.hard.term, raft.hard.voted_for or raft.leader)
        self._files.keep(0, [])
        self._files.keep_vote(raft.hard.term, raft.hard.voted_for, voter=True)
        raft.admitted = True
