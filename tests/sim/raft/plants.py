"""Planted bugs: each is a rule of consensus left out, to show that the checkers can fail and which rule carries what.

Most are the library's as it comes, or bugs that systems of this kind shipped with. A name is what `--plant` takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from pysyncobj import SyncObj

from controller.consensus import journal, log_face, raft_node
from controller.consensus.admission import Admission
from controller.consensus.engine import DeduplicatedMachine, Envelope, MachineSnapshot
from controller.consensus.log_face import LogFace
from controller.consensus.raft_node import RaftNode
from controller.consensus.wire import NextIndex, PreGranted
from controller.replicas.group import decode
from remoting.native.checksum import crc32c
from tests.sim.raft.clients import Client
from tests.sim.raft.schedule import Plant


def forgotten_vote_file(patch: pytest.MonkeyPatch) -> None:
    """A crash takes term and vote."""
    patch.setattr(log_face, "load", lambda _path, _kind: None)


def forgotten_vote(patch: pytest.MonkeyPatch) -> None:
    """A crash takes the vote, and leaves the term."""

    def load(path: Path, kind: Any) -> Any:
        found = journal.load(path, kind)
        return None if found is None else replace(found, voted_for=None)

    patch.setattr(log_face, "load", load)


def _written(path: Path, content: Any) -> None:
    """Not fsynced, and neither is its name."""
    temporary = path.with_suffix(".new")
    body = msgspec.msgpack.encode(content)
    temporary.write_bytes(crc32c(body).to_bytes(4, "little") + body)
    temporary.replace(path)


def vote_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A vote is sent before it is on the disk."""
    patch.setattr(log_face, "save", _written)


def answer_before_sync(patch: pytest.MonkeyPatch) -> None:
    """Entries are acknowledged that a crash forgets."""
    patch.setattr(LogFace, "sync", lambda _self: None)


def trimmed_before_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    """The journal is cut for a snapshot that is not on the disk."""
    patch.setattr(raft_node, "save", _written)
    patch.setattr(journal, "fsync_dir", lambda _directory: None)


def trimmed_before_its_name(patch: pytest.MonkeyPatch) -> None:
    """The snapshot is on the disk, and its name is not when the journal is cut."""
    patch.setattr(journal, "fsync_dir", lambda _directory: None)


def truncates_what_matches(patch: pytest.MonkeyPatch) -> None:
    """Everything behind the entry before a message's is deleted, as the library does."""

    def all_is_new(self: Any, message: dict[str, Any]) -> bool:
        self._conflict = True
        return False

    real = RaftNode._follow

    def follow(self: Any, node: Any, message: dict[str, Any]) -> None:
        entries = message.get("entries")
        real(self, node, message)
        self._conflict = bool(entries)

    def delete(self: Any, index: int) -> None:
        super(RaftNode, self)._SyncObj__deleteEntriesFrom(index)

    patch.setattr(RaftNode, "_leave_out_known", all_is_new)
    patch.setattr(RaftNode, "_follow", follow)
    patch.setattr(RaftNode, "_SyncObj__deleteEntriesFrom", delete)


def answers_differ_only(patch: pytest.MonkeyPatch) -> None:
    """A conflicting entry is reported but kept: the batches after it undo the leader's backtracking."""
    patch.setattr(RaftNode, "_cut_conflict", lambda _self, _message: None)


def believes_the_commit_index(patch: pytest.MonkeyPatch) -> None:
    """Also for entries that this leader never proved to be the same."""
    real = RaftNode._follow

    def follow(self: Any, node: Any, message: dict[str, Any]) -> None:
        committed, term = message["commit_index"], message["term"]
        real(self, node, message)
        if term >= self.raftCurrentTerm and self.raftCommitIndex < committed:
            self._SyncObj__raftCommitIndex = min(committed, self._face[-1][1])

    patch.setattr(RaftNode, "_follow", follow)


def drops_the_tail_behind_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """As the library does when it finds a snapshot that the journal was not cut for."""

    def use(self: Any, snapshot: Any) -> None:
        self._face.journal.replace([snapshot.before, snapshot.last])
        self._machine.restore(snapshot.state)
        self._SyncObj__raftLastApplied = self._SyncObj__raftCommitIndex = snapshot.last[1]

    patch.setattr(RaftNode, "_use", use)


def votes_for_shorter_logs(patch: pytest.MonkeyPatch) -> None:
    """The first candidate is elected, whatever entries it lacks."""
    real = RaftNode._SyncObj__onMessageReceived

    def receive(self: Any, node: Any, message: dict[str, Any]) -> None:
        if message["type"] == "request_vote":
            message = {**message, "last_log_index": 2**60, "last_log_term": 2**60}
        elif isinstance(message.get("own"), raft_node.PreVote):
            own = message["own"]
            message = {**message, "own": raft_node.PreVote(own.term, 2**60, 2**60)}
        real(self, node, message)

    patch.setattr(RaftNode, "_SyncObj__onMessageReceived", receive)


def newcomers_vote(patch: pytest.MonkeyPatch) -> None:
    """A controller whose files were emptied votes, stands and acknowledges like any other."""
    patch.setattr(LogFace, "voter", True)


def newcomers_acknowledge(patch: pytest.MonkeyPatch) -> None:
    """A controller whose files were emptied counts for a leader whose term it had left before."""

    def answer(self: Any, node: Any, *, success: bool = False, **where: Any) -> None:
        index = where.get("nextNodeIdx", self._face[-1][1] + 1)
        self._face.sync()
        self._peers.say(node, NextIndex(self.raftCurrentTerm, index, where.get("reset", False), success))

    patch.setattr(RaftNode, "_SyncObj__sendNextNodeIdx", answer)


def newcomers_stand(patch: pytest.MonkeyPatch) -> None:
    """A controller whose files were emptied is elected by one whose log is no longer than what it received so far."""
    seek, take = RaftNode._seek_admission, RaftNode._take_own

    def seek_and_stand(self: Any, now: float) -> None:
        seek(self, now)
        if self._SyncObj__raftElectionDeadline < now and not self._canvass.won:
            self._ask_before_election(now)

    def take_votes(self: Any, node: Any, message: Any) -> None:
        (self._answered if isinstance(message, PreGranted) else lambda *them: take(self, *them))(node, message)

    patch.setattr(RaftNode, "_seek_admission", seek_and_stand)
    patch.setattr(RaftNode, "_take_own", take_votes)


def joins_any_leader(patch: pytest.MonkeyPatch) -> None:
    """A newcomer votes once it has what some leader has committed, also one of a term that is over."""
    patch.setattr(Admission, "may_join", lambda _self, _term: True)


def joins_without_asking_all(patch: pytest.MonkeyPatch) -> None:
    """A newcomer votes once a majority of the others has answered: an absent one may have its vote."""
    patch.setattr(Admission, "missing", ())


def joins_with_a_free_vote(patch: pytest.MonkeyPatch) -> None:
    """A newcomer may vote a second time in the term in which it joins."""
    real = LogFace.become_voter

    def become_voter(self: Any) -> None:
        real(self)
        self.setCurrentTerm(self.getCurrentTerm(), None)

    patch.setattr(LogFace, "become_voter", become_voter)


def counts_what_a_lost_disk_had(patch: pytest.MonkeyPatch) -> None:
    """A leader counts what a follower acknowledged before it was wiped."""
    patch.setattr(RaftNode, "_SyncObj__onNodeConnected", SyncObj._SyncObj__onNodeConnected)


def founds_without_a_majority(patch: pytest.MonkeyPatch) -> None:
    """Two newcomers that meet begin a log."""
    patch.setattr(Admission, "_majority", lambda _self, _count: True)


def old_answers_count(patch: pytest.MonkeyPatch) -> None:
    """A follower's answer to an earlier leader counts for this one."""
    real = RaftNode._SyncObj__onMessageReceived

    def receive(self: Any, node: Any, message: dict[str, Any]) -> None:
        if message["type"] == "next_node_idx" and message["term"] < self.raftCurrentTerm:
            message = {**message, "term": self.raftCurrentTerm}
        real(self, node, message)

    patch.setattr(RaftNode, "_SyncObj__onMessageReceived", receive)


def counts_entries_of_older_terms(patch: pytest.MonkeyPatch) -> None:
    """A majority that has an entry of an older term commits it."""
    real = RaftNode.tick

    def tick(self: Any) -> None:
        if self._isLeader():
            matching = sorted([self._face[-1][1], *(self._SyncObj__raftMatchIndex[each] for each in self.otherNodes)])
            self._SyncObj__raftCommitIndex = max(self.raftCommitIndex, matching[(len(matching) - 1) // 2])
        real(self)

    patch.setattr(RaftNode, "tick", tick)


def believes_without_the_entry_before(patch: pytest.MonkeyPatch) -> None:
    """A follower confirms the leader's log, whatever precedes the message's entries."""
    real = RaftNode._leave_out_known

    def known(self: Any, message: dict[str, Any]) -> bool:
        real(self, message)
        return True

    patch.setattr(RaftNode, "_leave_out_known", known)


def takes_older_snapshots(patch: pytest.MonkeyPatch) -> None:
    """A snapshot is used whatever was applied before."""

    def take(self: Any, node: Any, install: Any) -> None:
        snapshot = self._pieces.take(install.piece, first=install.first, last=install.last)
        if snapshot is not None:
            raft_node.save(self._directory / raft_node.SNAPSHOT_FILE, snapshot)
            self._use(snapshot)
            self._SyncObj__sendNextNodeIdx(node, nextNodeIdx=snapshot.last[1] + 1, success=True)

    patch.setattr(RaftNode, "_take_piece", take)


def stale_reads(patch: pytest.MonkeyPatch) -> None:
    """A node that believes it leads answers from its state."""

    def read(self: Any, node_id: str) -> None:
        world = self.world
        if world.nodes[node_id].leads:
            world.judge.read(node_id, world.machines[node_id], len(world.judge.answered))

    patch.setattr(Client, "read", read)


def applies_twice(patch: pytest.MonkeyPatch) -> None:
    """A request that is proposed again is carried out again."""
    patch.setattr(DeduplicatedMachine, "_answers_of", lambda _self, _client: {})


def forgets_answers_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    """What was applied before a snapshot is applied again behind it."""
    patch.setattr(
        DeduplicatedMachine, "encode", lambda self: msgspec.msgpack.encode(MachineSnapshot(self.machine.encode(), {}))
    )


def a_command_raises(patch: pytest.MonkeyPatch) -> None:
    """The machine's fault is everybody's."""

    def apply(self: Any, data: bytes) -> Any:
        envelope = msgspec.msgpack.decode(data, type=Envelope)
        answers = self._answers_of(envelope.client)
        if envelope.request not in answers:
            answers[envelope.request] = self.machine.apply(decode(envelope.command))
        return answers[envelope.request]

    patch.setattr(DeduplicatedMachine, "apply", apply)


RARE: dict[str, int] = {"trimmed-before-its-name": 980}
"""Where the search for a bug begins that few seeds show."""

PLANTS: dict[str, Plant] = {
    "forgotten-vote-file": forgotten_vote_file,
    "forgotten-vote": forgotten_vote,
    "vote-not-synced": vote_not_synced,
    "answer-before-fsync": answer_before_sync,
    "trimmed-before-the-snapshot": trimmed_before_the_snapshot,
    "trimmed-before-its-name": trimmed_before_its_name,
    "truncates-what-matches": truncates_what_matches,
    "answers-differ-only": answers_differ_only,
    "believes-the-commit-index": believes_the_commit_index,
    "drops-the-tail-behind-a-snapshot": drops_the_tail_behind_a_snapshot,
    "votes-for-shorter-logs": votes_for_shorter_logs,
    "newcomers-vote": newcomers_vote,
    "newcomers-stand": newcomers_stand,
    "joins-with-a-free-vote": joins_with_a_free_vote,
    "believes-without-the-entry-before": believes_without_the_entry_before,
    "takes-older-snapshots": takes_older_snapshots,
    "stale-reads": stale_reads,
    "applies-twice": applies_twice,
    "forgets-answers-in-snapshots": forgets_answers_in_snapshots,
    "a-command-raises": a_command_raises,
}

SELDOM: dict[str, Plant] = {
    "newcomers-acknowledge": newcomers_acknowledge,
    "founds-without-a-majority": founds_without_a_majority,
    "joins-any-leader": joins_any_leader,
    "joins-without-asking-all": joins_without_asking_all,
    "counts-what-a-lost-disk-had": counts_what_a_lost_disk_had,
    "old-answers-count": old_answers_count,
    "counts-entries-of-older-terms": counts_entries_of_older_terms,
}
"""Bugs that need several accidents at once: a test's hundreds of schedules seldom show them, long runs do. Those of
newcomers have tests of their own (tests/unit/controller/consensus/test_admission.py)."""
