"""Planted bugs of our own engine: each a rule of the core left out; a name is what `--plant` takes with its engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as changed

from controller.consensus import dledger_node, journal
from controller.consensus.admission import Admission
from controller.consensus.dledger_node import DledgerNode, Fate, MemberFiles
from controller.raft import core
from controller.raft.core import HardState, Raft
from controller.raft.leading import Leading
from controller.raft.log import RaftLog
from controller.raft.messages import AppendAnswer, AppendEntries, VoteRequest
from remoting.protocol.voting import VoteAnswer
from tests.sim.raft.plants import (
    _written,
    a_command_raises,
    applies_twice,
    forgets_answers_in_snapshots,
    stale_reads,
    trimmed_before_its_name,
)
from tests.sim.raft.schedule import Plant


def forgotten_vote_file(patch: pytest.MonkeyPatch) -> None:
    """A crash takes term and vote."""
    real = journal.load
    patch.setattr(dledger_node, "load", lambda path, kind: None if kind is journal.Vote else real(path, kind))


def forgotten_vote(patch: pytest.MonkeyPatch) -> None:
    """A crash takes the vote, and leaves the term."""
    real = journal.load

    def load(path: Path, kind: Any) -> Any:
        found = real(path, kind)
        return found if found is None or kind is not journal.Vote else changed(found, voted_for=None)

    patch.setattr(dledger_node, "load", load)


def vote_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A vote is sent before it is on the disk."""
    patch.setattr(MemberFiles, "keep_vote", _keep_vote_lazily)


def _keep_vote_lazily(self: Any, term: int, voted_for: str | None, *, voter: bool, applied: int = 0) -> None:
    self.vote.term, self.vote.voted_for, self.vote.voter = term, voted_for, voter
    self.vote.committed = max(self.vote.committed, applied)
    _written(self._directory / dledger_node.VOTE_FILE, self.vote)


def answer_before_sync(patch: pytest.MonkeyPatch) -> None:
    """Entries are acknowledged that a crash forgets."""
    patch.setattr(journal.Journal, "sync", lambda _self: None)


def trimmed_before_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    """The journal is cut for a snapshot that is not on the disk."""
    real = dledger_node.save
    patch.setattr(
        dledger_node, "save", lambda path, content: (_written if path.name == "snapshot" else real)(path, content)
    )
    patch.setattr(journal, "fsync_dir", lambda _directory: None)


def truncates_what_matches(patch: pytest.MonkeyPatch) -> None:
    """Everything behind the entry before a message's goes, whether it is the same or not."""
    real = Raft._append

    def append(self: Any, message: AppendEntries, number: int) -> AppendAnswer:
        start = message.before_index + 1
        known = self.log.term(message.before_index) == message.before_term
        if known and self.log.committed < start <= self.log.last_index:
            self.log.cut(start)
        return real(self, message, number)

    patch.setattr(Raft, "_append", append)


def keeps_what_conflicts(patch: pytest.MonkeyPatch) -> None:
    """Only entries behind the log's end are taken."""

    def follow(self: Any, entries: list[Any]) -> list[Any]:
        new = [each for each in entries if each[1] > self.last_index]
        self._entries += new
        return new

    patch.setattr(RaftLog, "follow", follow)


def believes_the_commit_index(patch: pytest.MonkeyPatch) -> None:
    """Also for entries that this leader never proved to be the same."""
    real = Raft._append

    def append(self: Any, message: AppendEntries, number: int) -> AppendAnswer:
        answer = real(self, message, number)
        self.log.committed = max(self.log.committed, min(message.committed, self.log.last_index))
        return answer

    patch.setattr(Raft, "_append", append)


def drops_the_tail_behind_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A snapshot's place in the log is not looked for: what follows it goes, also what was acknowledged."""

    def follow(self: Any, snapshot: Any) -> None:
        self.journal.replace([snapshot.before, snapshot.last])

    patch.setattr(MemberFiles, "_follow", follow)


def votes_for_shorter_logs(patch: pytest.MonkeyPatch) -> None:
    """The first candidate is elected, whatever entries it lacks."""
    real = Raft._vote

    def vote(self: Any, now: float, sender: str, asked: VoteRequest) -> None:
        real(self, now, sender, changed(asked, last_index=1 << 60, last_term=1 << 60))

    patch.setattr(Raft, "_vote", vote)


def votes_twice(patch: pytest.MonkeyPatch) -> None:
    """A vote is given to everyone who asks in a term."""
    rules = tuple(
        each for each in core.judge.__globals__["VOTE_RULES"] if each[0] is not VoteAnswer.REJECT_ALREADY_VOTED
    )
    patch.setitem(core.judge.__globals__, "VOTE_RULES", rules)


def newcomers_vote(patch: pytest.MonkeyPatch) -> None:
    """A controller whose files were emptied votes, stands and acknowledges like any other."""
    real = DledgerNode.__init__

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        real(self, *arguments, **options)
        self.raft.admitted = True

    patch.setattr(DledgerNode, "__init__", init)


def joins_with_a_free_vote(patch: pytest.MonkeyPatch) -> None:
    """A newcomer may vote a second time in the term in which it joins."""
    real = DledgerNode._admit

    def admit(self: Any) -> None:
        was = self.raft.admitted
        real(self)
        if not was:
            self.raft.hard = HardState(self.raft.hard.term, None)

    patch.setattr(DledgerNode, "_admit", admit)


def joins_any_leader(patch: pytest.MonkeyPatch) -> None:
    """A newcomer votes once it has what some leader has committed, also one of a term that is over."""
    patch.setattr(Admission, "may_join", lambda _self, _term: True)


def counts_what_a_lost_disk_had(patch: pytest.MonkeyPatch) -> None:
    """A leader counts what a follower acknowledged before it was wiped."""
    patch.setattr(Leading, "reconnected", lambda _self, _peer: None)


def counts_entries_of_older_terms(patch: pytest.MonkeyPatch) -> None:
    """A majority that has an entry of an older term commits it."""
    real = Leading.commit

    def commit(self: Any) -> None:
        real(self)
        durable = sorted([self._log.stable, *(each.match for each in self.progress.values())], reverse=True)
        self._log.committed = max(self._log.committed, durable[self._members.majority - 1])

    patch.setattr(Leading, "commit", commit)


def believes_without_the_entry_before(patch: pytest.MonkeyPatch) -> None:
    """A follower confirms the leader's log, whatever precedes the message's entries."""
    real = Raft._append

    def append(self: Any, message: AppendEntries, number: int) -> AppendAnswer:
        term = self.log.term(message.before_index)
        return real(self, message if term is None else changed(message, before_term=term), number)

    patch.setattr(Raft, "_append", append)


def takes_older_snapshots(patch: pytest.MonkeyPatch) -> None:
    """A state is used whatever was applied before."""
    real = DledgerNode._take_state

    def take(self: Any) -> None:
        if self.raft._work.arrived is not None:
            self.raft.log.committed = 1
        real(self)

    patch.setattr(DledgerNode, "_take_state", take)
    install = Raft._install

    def piece(self: Any, message: Any, number: int) -> Any:
        committed, self.log.committed = self.log.committed, 0
        answer = install(self, message, number)
        self.log.committed = committed
        return answer

    patch.setattr(Raft, "_install", piece)


def sent_before_written(patch: pytest.MonkeyPatch) -> None:
    """Sends before the disk has what the messages show."""
    real = DledgerNode.settle

    def settle(self: Any) -> None:
        write = self._write
        held: list[Any] = []
        self._write = held.append
        try:
            real(self)
        finally:
            self._write = write
            for ready in held:
                write(ready)

    patch.setattr(DledgerNode, "settle", settle)


def reads_without_a_round(patch: pytest.MonkeyPatch) -> None:
    """A leader answers readers without asking whether another one leads by now."""

    def read(self: Any, done: Any) -> None:
        done(None, Fate.DONE if self.leads else Fate.NOT_LEADING)

    patch.setattr(DledgerNode, "read", read)


def reads_of_the_round_before(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat that was sent before the reader asked confirms its read."""
    real = Leading.read

    def read(self: Any, token: Any) -> None:
        real(self, token)
        name, at, number = self.reads.waiting[-1]
        self.reads.waiting[-1] = name, at, number - 1

    patch.setattr(Leading, "read", read)


def acknowledges_what_it_cut(patch: pytest.MonkeyPatch) -> None:
    """A follower confirms up to its log's end instead of up to the message's last entry."""
    real = Raft._append

    def append(self: Any, message: AppendEntries, number: int) -> AppendAnswer:
        answer = real(self, message, number)
        return changed(answer, index=self.log.last_index) if answer.matched else answer

    patch.setattr(Raft, "_append", append)


PLANTS: dict[str, Plant] = {
    "forgotten-vote-file": forgotten_vote_file,
    "forgotten-vote": forgotten_vote,
    "vote-not-synced": vote_not_synced,
    "answer-before-fsync": answer_before_sync,
    "sent-before-written": sent_before_written,
    "trimmed-before-the-snapshot": trimmed_before_the_snapshot,
    "truncates-what-matches": truncates_what_matches,
    "keeps-what-conflicts": keeps_what_conflicts,
    "believes-the-commit-index": believes_the_commit_index,
    "drops-the-tail-behind-a-snapshot": drops_the_tail_behind_a_snapshot,
    "votes-for-shorter-logs": votes_for_shorter_logs,
    "votes-twice": votes_twice,
    "newcomers-vote": newcomers_vote,
    "believes-without-the-entry-before": believes_without_the_entry_before,
    "reads-without-a-round": reads_without_a_round,
    "reads-of-the-round-before": reads_of_the_round_before,
    "stale-reads": stale_reads,
    "applies-twice": applies_twice,
    "forgets-answers-in-snapshots": forgets_answers_in_snapshots,
    "a-command-raises": a_command_raises,
}

SELDOM: dict[str, Plant] = {
    "trimmed-before-its-name": trimmed_before_its_name,
    "joins-with-a-free-vote": joins_with_a_free_vote,
    "joins-any-leader": joins_any_leader,
    "takes-older-snapshots": takes_older_snapshots,
    "counts-what-a-lost-disk-had": counts_what_a_lost_disk_had,
    "counts-entries-of-older-terms": counts_entries_of_older_terms,
    "acknowledges-what-it-cut": acknowledges_what_it_cut,
}
"""Bugs that need several accidents at once; hundreds of schedules seldom show them, and tests of the core do
(tests/unit/controller/raft)."""
