"""Journal and vote of a controller behind PySyncObj's interface, durable before the library acts on them.

The library's own journal writes through a memory map that is never flushed and is rewritten in place when it is cut;
this one appends to a file that is fsynced by `sync` and replaced atomically.
Invariant: term and vote are on disk when `setCurrentTerm` returns; a journal that ends before what was committed is
refused at the start. Names are the library's. Thread rule: the consensus thread only.
"""
# ruff: noqa: N802, N803

from __future__ import annotations

from pathlib import Path
from typing import overload

from msgspec.structs import replace

from controller.consensus.engine import FIRST_ENTRY, JOURNAL_FILE, SNAPSHOT_FILE, VOTE_FILE
from controller.consensus.journal import Entry, Journal, RaftSnapshot, Vote, load, save
from controller.raft.membership import decode_members
from controller.raft.messages import CONFIGURATION
from remoting.protocol.errors import LocalMisuse


class LogFace:
    """What the library calls its raft log."""

    def __init__(self, directory: Path, members: tuple[str, ...]) -> None:
        self.journal = Journal(directory / JOURNAL_FILE)
        self._vote_path = directory / VOTE_FILE
        vote = load(self._vote_path, Vote)
        end = self.journal[-1][1] if len(self.journal) else FIRST_ENTRY[1]
        if vote is not None and end < vote.committed:
            raise LocalMisuse(
                f"{self.journal.path} ends at entry {end}, but {vote.committed} was committed: with other controllers "
                f"alive, empty this one's data directory and let it catch up"
            )
        self._check_members(directory, members)
        # A directory with entries and without a vote was copied from another controller.
        self._vote = vote or Vote(members=members, voter=end > FIRST_ENTRY[1])
        self._saved = replace(vote) if vote is not None else None
        self.setCurrentTerm(self._vote.term, self._vote.voted_for)

    def _check_members(self, directory: Path, members: tuple[str, ...]) -> None:
        """Refuse a log whose members were changed while the controllers ran: this engine would not follow them."""
        snapshot = load(directory / SNAPSHOT_FILE, RaftSnapshot)
        named = [snapshot.members] if snapshot is not None and snapshot.members else []
        named += [command for command, _, _ in self.journal.part(0) if command[:1] == CONFIGURATION]
        if not named:
            return
        found = decode_members(named[-1])
        if sorted(found.voters) != sorted(members) or found.learners:
            raise LocalMisuse(
                f"{directory} has the controllers {', '.join(sorted(found.members))} by changes at run time, which "
                f'controller.raft_engine = "dledger" alone follows: set it again'
            )

    @property
    def voter(self) -> bool:
        """Whether this controller had everything that was committed once."""
        return self._vote.voter

    def become_voter(self) -> None:
        """It has now; durable when this returns."""
        if not self._vote.voter:
            self._vote.voter = True
            self._save()

    def close(self) -> None:
        """Close the journal, and write the vote if it has changed."""
        self.journal.close()
        self._save()

    def sync(self) -> None:
        """Make what was added durable."""
        self.journal.sync()

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Append a command at `idx` in `term`; durable after the next sync."""
        self.journal.add((bytes(command), idx, term))

    def __len__(self) -> int:
        return len(self.journal)

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        if isinstance(item, slice):
            assert item.step is None
            return self.journal.part(item.start or 0, item.stop)
        return self.journal[item]

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Cut the entries from place `entryFrom` on, durably."""
        self.journal.cut_tail(entryFrom)

    def deleteEntriesTo(self, entryTo: int) -> None:
        """Drop the first `entryTo` entries, which a snapshot holds, durably."""
        self.journal.cut_head(entryTo)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Remember how far the log is committed; on disk within a second."""
        self._vote.committed = raftCommitIndex

    def getRaftCommitIndex(self) -> int:
        """How far it was known to be committed."""
        return self._vote.committed

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        """Remember the term and the vote, durably."""
        self._vote.term, self._vote.voted_for = term, votedForNodeId
        self._save()

    def getCurrentTerm(self) -> int:
        """The highest term this controller has seen, as it is on disk."""
        return self._vote.term

    def getVotedForNodeId(self) -> str | None:
        """Who got this controller's vote in the term."""
        return self._vote.voted_for

    def onOneSecondTimer(self) -> None:
        """Write how far the log is committed."""
        self._save()

    def _destroy(self) -> None:
        self.close()

    def _save(self) -> None:
        if self._vote == self._saved:
            return
        if self.journal.open:
            self.journal.sync()  # entries recorded as committed must be present at the next start
        save(self._vote_path, self._vote)
        self._saved = replace(self._vote)
