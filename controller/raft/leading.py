"""What only a leader has: how far each member is, what to send it next, what is committed, and who still follows.

    PROBE      one message at a time until the member's log and the leader's are known to agree
    REPLICATE  entries are sent as they come, without waiting for answers
    SNAPSHOT   the member needs entries that are gone: pieces of the state, one at a time

A member's `match` is what it acknowledged over the present connection, never what it said before: it may have lost its
disk in between. Invariant: `committed` moves only to an entry of the leader's own term that a majority of the voters
has on disk, and a read is confirmed only by a round of heartbeats that began after it was asked. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum

from controller.raft.log import RaftLog
from controller.raft.membership import Membership
from controller.raft.messages import AppendAnswer, AppendEntries, Entry, Installed, InstallState, RaftMessage

BATCH_BYTES = 4 * 1024 * 1024
"""Entries in one message."""
PIECE_BYTES = 1024 * 1024
"""State in one message."""
IN_FLIGHT_MAX = 64
"""Messages with entries on their way to one member; more wait for an answer."""
PATIENCE_BEATS = 8
"""Heartbeats after which what was not answered is sent again."""


class SendPace(IntEnum):
    """How a member is served."""

    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


@dataclass(slots=True)
class MemberProgress:
    """One member, seen by the leader."""

    next: int
    match: int = 0
    pace: SendPace = SendPace.PROBE
    waiting: int = 0
    """Heartbeats to wait for an answer before anything new is sent."""
    in_flight: int = 0
    round: int = 0
    """The latest that it answered."""
    last_contact: float = 0.0
    offset: int = 0
    snapshot: int = 0
    """Entry of the state whose pieces it gets."""

    def probe(self, index: int) -> None:
        """Find out where its log agrees, from this entry on."""
        self.pace, self.next, self.waiting, self.in_flight = SendPace.PROBE, max(1, index), 0, 0


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """The state after an entry, as one piece of bytes, and the members there."""

    last: Entry
    members: Membership
    data: bytes

    @property
    def index(self) -> int:
        """Index of the entry it ends with."""
        return self.last[1]

    @property
    def term(self) -> int:
        """Term of the entry it ends with."""
        return self.last[2]


@dataclass(slots=True)
class Reads:
    """Readers that wait for a round: (token, entry that must be applied first, round)."""

    waiting: list[tuple[Hashable, int, int]] = field(default_factory=list)
    confirmed: list[tuple[Hashable, int]] = field(default_factory=list)


class Leading:
    """One leadership of one member, from its no-op on."""

    def __init__(self, own: str, term: int, log: RaftLog, members: Membership, now: float) -> None:
        self.own = own
        self.term = term
        self.began = log.last_index + 1
        """The no-op with which it begins."""
        self.progress: dict[str, MemberProgress] = {}
        self.reads = Reads()
        self.heir = ""
        """The member leadership is being handed to."""
        self._log = log
        self._members = members
        self._round = 0
        self._beat = True
        self.use(members, now)

    def use(self, members: Membership, now: float) -> None:
        """These are the members from here on."""
        self._members = members
        for each in [each for each in self.progress if each not in members.members]:
            del self.progress[each]
        for each in members.members:
            if each != self.own and each not in self.progress:
                self.progress[each] = MemberProgress(self._log.last_index + 1, last_contact=now)

    def beat(self) -> None:
        """A heartbeat is due: all get a message, also those whose answer was lost."""
        self._beat = True
        for each in self.progress.values():
            each.waiting = max(0, each.waiting - 1)

    def reconnected(self, peer: str) -> None:
        """What a member acknowledged over an earlier connection no longer counts."""
        progress = self.progress.get(peer)
        if progress is not None:
            progress.match = 0
            progress.probe(self._log.last_index + 1)

    def read(self, token: Hashable) -> None:
        """Confirm to this reader, with the next round, that nobody else leads."""
        self.reads.waiting.append((token, max(self._log.committed, self.began), self._round + 1))
        self._beat = True

    def majority_present_since(self, when: float) -> bool:
        """Whether a majority of the voters was heard from after this time."""
        voters = self._members.voters
        present = sum(one.last_contact >= when for each, one in self.progress.items() if each in voters)
        return present + (self.own in voters) >= self._members.majority

    def caught_up(self, peer: str) -> bool:
        """Whether a member has all that is committed."""
        progress = self.progress.get(peer)
        return progress is not None and progress.match >= self._log.committed

    # ---- answers

    def appended(self, sender: str, message: AppendAnswer, now: float) -> None:
        """A member took entries, or says where to go on."""
        progress = self.progress.get(sender)
        if progress is None:
            return
        self._note_contact(progress, message.round, now)
        if message.matched:
            progress.match = max(progress.match, message.index)
            progress.next = max(progress.next, progress.match + 1)
            progress.waiting, progress.in_flight = 0, max(0, progress.in_flight - 1)
            installed = progress.pace is SendPace.SNAPSHOT and message.index >= progress.snapshot
            if progress.pace is SendPace.PROBE or installed:
                progress.pace, progress.in_flight = SendPace.REPLICATE, 0
        elif self._counts(progress, message):
            progress.probe(self._agreed(message))
            progress.waiting = PATIENCE_BEATS if progress.next > self._log.last_index else 0

    def _counts(self, progress: MemberProgress, message: AppendAnswer) -> bool:
        """Whether a refusal says anything new: a late one would only send everything again."""
        if progress.pace is SendPace.SNAPSHOT:
            return not message.refused and message.index > progress.snapshot
        return message.refused > progress.match or not message.refused

    def installed(self, sender: str, message: Installed, now: float) -> None:
        """A member took a piece of the state, and expects the next one."""
        progress = self.progress.get(sender)
        if progress is None:
            return
        self._note_contact(progress, message.round, now)
        if progress.snapshot == message.index and progress.offset != message.offset:
            progress.offset, progress.waiting = message.offset, 0

    def _note_contact(self, progress: MemberProgress, number: int, now: float) -> None:
        if number:
            progress.last_contact, progress.round = now, max(progress.round, number)

    def _agreed(self, message: AppendAnswer) -> int:
        """The entry to try next after a refusal: behind the last one of the member's term, or that term's first."""
        if message.hint_term:
            last = self._log.last_up_to_term(message.hint_term)
            if last:
                return min(last + 1, message.refused)
        return min(message.index, self._log.last_index + 1)

    def commit(self) -> None:
        """Move the commit position as far as a majority has everything, and confirm reads."""
        voters = self._members.voters
        durable = {**{each: one.match for each, one in self.progress.items()}, self.own: self._log.stable}
        index = sorted((durable.get(each, 0) for each in voters), reverse=True)[self._members.majority - 1]
        if index > self._log.committed and self._log.term(index) == self.term:
            self._log.committed = index
        if self.reads.waiting and self._log.committed >= self.began:
            rounds = {**{each: one.round for each, one in self.progress.items()}, self.own: self._round}
            done = sorted((rounds.get(each, 0) for each in voters), reverse=True)[self._members.majority - 1]
            self.reads.confirmed += [(token, at) for token, at, number in self.reads.waiting if number <= done]
            self.reads.waiting = [each for each in self.reads.waiting if each[2] > done]

    # ---- messages

    def messages(self, snapshot: StateSnapshot | None) -> list[tuple[str, RaftMessage]]:
        """What is to be sent now."""
        beat, self._beat = self._beat, False
        self._round += beat
        found: list[tuple[str, RaftMessage]] = []
        for peer, progress in self.progress.items():
            found += [(peer, message) for message in self._to(progress, snapshot, beat=beat)]
        return found

    def _to(self, progress: MemberProgress, snapshot: StateSnapshot | None, *, beat: bool) -> list[RaftMessage]:
        if progress.pace is not SendPace.SNAPSHOT and self._log.term(progress.next - 1) is None:
            assert snapshot is not None, "a log that was cut has a snapshot"
            progress.pace, progress.snapshot, progress.offset = SendPace.SNAPSHOT, snapshot.index, 0
            progress.waiting = 0
        if progress.pace is SendPace.SNAPSHOT:
            assert snapshot is not None
            return [self._piece(progress, snapshot)] if beat or not progress.waiting else []
        found: list[RaftMessage] = []
        while not progress.waiting and progress.next <= self._log.last_index and progress.in_flight < IN_FLIGHT_MAX:
            found.append(self._append(progress, with_entries=True))
        if not found and (beat or (progress.pace is SendPace.PROBE and not progress.waiting)):
            found.append(self._append(progress, with_entries=False))
        return found

    def _append(self, progress: MemberProgress, *, with_entries: bool) -> AppendEntries:
        log, before = self._log, progress.next - 1
        term = log.term(before)
        assert term is not None
        end = log.last_index + 1 if with_entries else progress.next
        entries = log.entries(progress.next, end, BATCH_BYTES)
        if progress.pace is SendPace.PROBE:
            progress.waiting = progress.waiting or PATIENCE_BEATS
        else:
            progress.next += len(entries)
            progress.in_flight += bool(entries)
        return AppendEntries(self.term, self._round, log.committed, before, term, entries)

    def _piece(self, progress: MemberProgress, snapshot: StateSnapshot) -> InstallState:
        """The next piece, or an empty one while the last is on its way: the leader is there."""
        if progress.snapshot != snapshot.index:
            progress.snapshot, progress.offset, progress.waiting = snapshot.index, 0, 0
        size = 0 if progress.waiting else PIECE_BYTES
        progress.waiting = progress.waiting or PATIENCE_BEATS
        piece = snapshot.data[progress.offset : progress.offset + size]
        return InstallState(self.term, self._round, snapshot.index, progress.offset, piece, len(snapshot.data))
