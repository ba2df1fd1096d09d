"""PySyncObj's Raft with what it lacks: durable files, safe truncation and snapshots, pre-votes, and no pickle.

What is different from the library, each because acknowledged commands were lost or the log stood still without it:
- the journal is fsynced before an entry is acknowledged or counted, term and vote before they are shown (`LogFace`);
- an entry that matches is never cut: only a proven conflict truncates, and never below what is committed;
- a follower's commit index never passes what this leader has proven to match;
- a snapshot that arrives or is found at the start keeps the entries behind it; it is checked before it is used;
- answers carry their term: old ones are dropped, higher ones end a leadership;
- a controller whose directory was empty neither votes nor acknowledges before it is admitted (`Admission`);
- what a follower acknowledged over an earlier connection is not counted: it may have lost its disk since;
- an election begins only after a pre-vote was won, whatever time passes between two looks at the clock;
- a candidate first asks whether it could win (pre-vote), so that a cut-off node does not raise terms;
- commands are our own bytes; membership, versions, forwarding and transfers of the library cannot be reached.
It overrides the library's private methods, so the version is pinned.
Thread rule: the consensus thread only.

`PreVoteRound` counts the answers of one round before an election, once per controller and in any order.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf
from pysyncobj.monotonic import monotonic

from controller.consensus.admission import Admission
from controller.consensus.engine import COMMAND_BYTES_MAX, SNAPSHOT_FILE, ConsensusFailed, Machine
from controller.consensus.journal import RaftSnapshot, SnapshotPieces, load, save
from controller.consensus.log_face import LogFace
from controller.consensus.peers import PeerTransport
from controller.consensus.wire import Install, NextIndex, PreGranted, PreVote
from controller.raft.messages import REGULAR, Founded, Join, JoinReply
from remoting.protocol.errors import LocalMisuse


class PreVoteRound:
    """One controller's round of asking; there is none before `begin` and after `end`."""

    def __init__(self, own: str, members: int) -> None:
        self._own = own
        self._members = members
        self._grants: set[str] = set()

    @property
    def asks(self) -> bool:
        """Whether a round is open."""
        return bool(self._grants)

    @property
    def won(self) -> bool:
        """Whether a majority would vote for this controller, itself included."""
        return 2 * len(self._grants) > self._members

    def begin(self) -> None:
        """Start a new round: only this controller's own vote counts yet."""
        self._grants = {self._own}

    def end(self) -> None:
        """The round is over; late answers count for nothing."""
        self._grants = set()

    def granted(self, node_id: str) -> None:
        """It would vote for this controller."""
        if self.asks:
            self._grants.add(node_id)


# ruff: noqa: N802, N803


NO_OP = b"\x01"
BATCH_BYTES = 4 * COMMAND_BYTES_MAX
"""Entries sent in one message; a follower with a conflict and more than that behind it catches up slowly."""
PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Timers:
    """Intervals of the election and replication timers, in seconds."""

    heartbeat: float
    election: float
    """Shortest silence of a leader before another controller asks whether it could lead; the longest is twice that."""
    fallback: float


class RaftNode(SyncObj):  # type: ignore[misc]  # the library has no types
    """One controller's Raft."""

    def __init__(
        self,
        directory: Path,
        transport: PeerTransport,
        machine: Machine,
        timers: Timers,
        *,
        snapshot_entries: int,
    ) -> None:
        """Restore journal, vote and snapshot of a directory. Raises LocalMisuse, OSError."""
        self._directory = directory
        self._peers = transport
        self._machine = machine
        self._timers = timers
        self._face = LogFace(directory, tuple(sorted(transport.nodes)))
        self._conflict = False
        self._leader_heard = 0.0
        self._canvass = PreVoteRound(transport.own.node_id, len(transport.nodes))
        self._admission = Admission(transport.nodes.keys() - {transport.own.node_id}, timers.election)
        self._pieces, self.snapshots = SnapshotPieces(), 0
        conf = SyncObjConf(
            autoTick=False,
            raftMinTimeout=timers.election,
            raftMaxTimeout=2 * timers.election,
            appendEntriesPeriod=timers.heartbeat,
            connectionTimeout=2 * timers.election,
            leaderFallbackTimeout=timers.fallback,
            appendEntriesBatchSizeBytes=BATCH_BYTES,
            commandsWaitLeader=False,
            logCompactionMinEntries=snapshot_entries,
            logCompactionMinTime=10**9,
            logCompactionBatchSize=PIECE_BYTES,
            fullDumpFile=str(directory / SNAPSHOT_FILE),
            serializer=self._write_snapshot,
            deserializer=self._unused,
        )
        own = transport.nodes[transport.own.node_id]
        others = [node for node in transport.nodes.values() if node != own]
        super().__init__(own, others, conf, transport=transport)
        self._SyncObj__needLoadDumpFile = False
        self._SyncObj__raftElectionDeadline: float
        self._restore()
        self._face.sync()

    @property
    def _SyncObj__raftLog(self) -> LogFace:
        return self._face

    @_SyncObj__raftLog.setter
    def _SyncObj__raftLog(self, _library_journal: object) -> None:
        """The library would use its own."""

    @property
    def leads(self) -> bool:
        """Whether this node leads and its machine has everything that was committed before."""
        noop = self._SyncObj__noopIDx
        return bool(self._isLeader() and noop is not None and self.raftLastApplied >= noop)

    @property
    def votes(self) -> bool:
        """Whether this node votes and acknowledges; false until a node with an empty directory is admitted."""
        return self._face.voter

    @property
    def obstacle(self) -> str:
        """What keeps this node from voting; empty when it votes."""
        return "" if self._face.voter else self._admission.obstacle()

    @property
    def leader_id(self) -> str | None:
        """Node id of the leader this node follows or is."""
        leader = self._getLeader()
        return None if leader is None else str(leader.id)

    @property
    def log_entries(self) -> int:
        """Entries in the journal."""
        return len(self._face)

    def propose(self, command: bytes, done: Callable[[object, int], object]) -> None:
        """Add a command; `done(answer, reason)` follows, `reason` being one of the library's."""
        if self._isLeader():
            self._applyCommand(command, done)
        else:
            done(None, FAIL_REASON.NOT_LEADER)

    def tick(self) -> None:
        """Let time count and everything that is possible happen."""
        now = monotonic()
        if not self._face.voter:
            self._seek_admission(now)
        elif not self._isLeader() and not self._canvass.won and self._SyncObj__raftElectionDeadline < now:
            self._ask_before_election(now) if self._SyncObj__connectedNodes else None
        self._onTick(0.0)
        if self._canvass.won:
            self._canvass.end()

    def close(self) -> None:
        """Close journal, snapshot and vote files."""
        self._face.close()

    def _SyncObj__connectedToAnyone(self) -> bool:
        """The library's condition for an election, beside a deadline that may pass between two looks at the clock."""
        return self._canvass.won

    def _checkCommandsToApply(self) -> None:
        """Take what is proposed: send it, then make it durable here, so that followers work at the same time."""
        if not self._isLeader():
            self._refuse_queued()
            return
        before = len(self._face)
        super()._checkCommandsToApply()
        if len(self._face) != before:
            super()._SyncObj__sendAppendEntries()
            self._face.sync()

    def _SyncObj__onBecomeLeader(self) -> None:
        for node in self.otherNodes:
            self._SyncObj__serializer.cancelTransmisstion(node)  # of a leadership before: its pieces were refused
        super()._SyncObj__onBecomeLeader()
        self._face.sync()

    def _SyncObj__setState(self, newState: int) -> None:
        if self._isLeader():
            self._give_up(float("inf"))
        super()._SyncObj__setState(newState)

    def _SyncObj__tryLogCompaction(self) -> None:
        before = self.snapshots
        super()._SyncObj__tryLogCompaction()
        if self.snapshots != before:
            # It is written: let the library see that at once, until then it floods the follower.
            super()._SyncObj__tryLogCompaction()

    def _SyncObj__doApplyCommand(self, command: bytes) -> object:
        return self._machine.apply(command[1:]) if command[:1] == REGULAR else None

    def _SyncObj__parseChangeClusterRequest(self, _command: bytes) -> None:
        return None

    def _SyncObj__loadDumpFile(self, **_options: bool) -> None:
        raise AssertionError("snapshots are installed by us")

    def _SyncObj__deleteEntriesFrom(self, fromIDx: int) -> None:
        if not self._conflict:
            return
        if fromIDx <= self.raftCommitIndex:
            raise ConsensusFailed(f"a leader contradicts entry {fromIDx}, and {self.raftCommitIndex} is committed")
        super()._SyncObj__deleteEntriesFrom(fromIDx)

    def _SyncObj__sendNextNodeIdx(
        self, node: Any, reset: bool = False, nextNodeIdx: int | None = None, success: bool = False
    ) -> None:
        if not (self._face.voter or reset):
            return  # this node may have acknowledged to a later leader, and lost its disk since
        self._face.sync()
        index = self._face[-1][1] + 1 if nextNodeIdx is None else nextNodeIdx
        self._peers.say(node, NextIndex(self.raftCurrentTerm, index, reset, success))

    def _SyncObj__onNodeConnected(self, node: Any) -> None:
        super()._SyncObj__onNodeConnected(node)
        self._SyncObj__raftMatchIndex[node] = 0
        self._admission.interrupt()

    def _SyncObj__onNodeDisconnected(self, node: Any) -> None:
        super()._SyncObj__onNodeDisconnected(node)
        self._SyncObj__serializer.cancelTransmisstion(node)  # the rest of a snapshot is nothing without its beginning
        if node == self._getLeader():
            # It is most likely dead: ask soon, at random, instead of waiting for the silence to be long.
            self._leader_heard = 0.0
            self._SyncObj__raftLeader = None
            soon = monotonic() + (self._SyncObj__generateRaftTimeout() - self._timers.election) / 2
            self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, soon)

    def _SyncObj__onMessageReceived(self, node: Any, message: dict[str, Any]) -> None:
        kind, own, term = message["type"], message.get("own"), message["term"]
        if own is not None and kind == "own":
            self._take_own(node, own)
        elif kind == "append_entries":
            self._follow(node, message)
        elif kind == "next_node_idx" and term != self.raftCurrentTerm:
            if term > self.raftCurrentTerm:
                self._step_down(term)
        elif kind != "request_vote" or self._face.voter:
            super()._SyncObj__onMessageReceived(node, message)

    def _take_own(self, node: Any, message: PreVote | PreGranted | Founded | Join | JoinReply) -> None:
        if isinstance(message, Join):
            self._peers.say(node, self._join_reply(message.round))
        elif isinstance(message, JoinReply):
            self._learn(node, message)
        elif isinstance(message, Founded):
            self._face.become_voter()
        elif not self._face.voter:
            pass  # its own vote must not count, whatever the others would vote
        elif isinstance(message, PreVote):
            self._judge(node, message)
        else:
            self._answered(node, message)

    def _follow(self, node: Any, message: dict[str, Any]) -> None:
        if message["term"] < self.raftCurrentTerm:
            # The sender must learn that its term is over, or the two would ignore each other for ever.
            self._peers.say(node, NextIndex(self.raftCurrentTerm, 0, reset=False, success=False))
            return
        if message["term"] > self.raftCurrentTerm:
            self._step_down(message["term"])
        self._leader_heard = monotonic()
        install, committed = message.pop("own", None), message["commit_index"]
        if isinstance(install, Install):
            message["commit_index"] = min(committed, self.raftCommitIndex)
            super()._SyncObj__onMessageReceived(node, message)
            self._take_piece(node, install)
            return
        self._cut_conflict(message)
        proven = self._leave_out_known(message)
        message["commit_index"] = min(committed, message["prevLogIdx"] + len(message["entries"]))
        self._conflict = bool(message["entries"])
        if proven and not self._conflict:
            # Nothing new: only the leader's presence and how far is committed, nothing the library could truncate.
            end = message.pop("prevLogIdx")
            super()._SyncObj__onMessageReceived(node, message)
            self._SyncObj__sendNextNodeIdx(node, nextNodeIdx=end + 1, success=True)
        else:
            super()._SyncObj__onMessageReceived(node, message)
        if not self._face.voter and self._admission.may_join(self.raftCurrentTerm) and self._has_committed(committed):
            # What it voted in this term before it lost its disk is not known, so no other candidate gets its vote.
            self._SyncObj__setCurrentTerm(self.raftCurrentTerm, node.id)
            self._face.become_voter()

    def _has_committed(self, committed: int) -> bool:
        """Whether everything is here; only an entry of its own term shows that a leader knows what is committed."""
        found = self._SyncObj__getEntries(committed, 1) if self.raftCommitIndex >= committed else []
        return bool(found) and found[0][2] == self.raftCurrentTerm

    def _cut_conflict(self, message: dict[str, Any]) -> None:
        """Remove the entry before the message's, and all behind it, when it is another one than the leader's.

        Only to answer that it differs is not enough: what this node says of the batches behind this one, that it has no
        entry before theirs, would send the leader forward again, for ever when more than one batch is missing.
        """
        before = message["prevLogIdx"]
        found = self._SyncObj__getEntries(before, 1)
        if found and found[0][2] != message["prevLogTerm"]:
            self._conflict = True
            self._SyncObj__deleteEntriesFrom(before)

    def _leave_out_known(self, message: dict[str, Any]) -> bool:
        """Move the message's start behind the entries that are here already; whether the entry before it is here."""
        entries, before = message["entries"], message["prevLogIdx"]
        found = self._SyncObj__getEntries(before, 1 + len(entries))
        if not found or found[0][2] != message["prevLogTerm"]:
            return False
        known = 0
        for (_, _, mine), (_, _, theirs) in zip(found[1:], entries, strict=False):
            if mine != theirs:
                break
            known += 1
        if known:
            message["prevLogIdx"], message["prevLogTerm"] = entries[known - 1][1:]
            message["entries"] = entries[known:]
        return True

    def _take_piece(self, node: Any, install: Install) -> None:
        snapshot = self._pieces.take(install.piece, first=install.first, last=install.last)
        if snapshot is None:
            self._SyncObj__sendNextNodeIdx(node)  # a sign of life: a long snapshot must not end the leadership
            return
        if snapshot.last[1] > self.raftLastApplied:
            save(self._directory / SNAPSHOT_FILE, snapshot)
            self._use(snapshot)
        self._SyncObj__sendNextNodeIdx(node, nextNodeIdx=snapshot.last[1] + 1, success=True)

    def _write_snapshot(self, _path: str, parts: tuple[Any, ...]) -> None:
        """The library's serializer: it renames what is written, which therefore lies durably under both names."""
        last, before = parts[0], parts[1]
        save(Path(_path), RaftSnapshot(tuple(before), tuple(last), self._machine.encode()))
        self.snapshots += 1

    def _unused(self, _path: str) -> tuple[Any, ...]:
        raise AssertionError("snapshots are read by us")

    def _restore(self) -> None:
        snapshot = load(self._directory / SNAPSHOT_FILE, RaftSnapshot)
        if snapshot is not None:
            self._use(snapshot)
        elif self._face[0][1] != 1:
            raise LocalMisuse(
                f"{self._face.journal.path} does not begin with entry 1 and there is no snapshot: with other "
                f"controllers alive, empty this one's data directory and let it catch up"
            )

    def _use(self, snapshot: RaftSnapshot) -> None:
        """Make a durable snapshot the state, and keep the entries that follow it."""
        journal, index = self._face.journal, snapshot.last[1]
        place = index - journal[0][1]
        if 1 <= place < len(journal) and journal[place][1:] == snapshot.last[1:]:
            journal.cut_head(place - 1)
        else:
            journal.replace([snapshot.before, snapshot.last])
        self._machine.restore(snapshot.state)
        self._SyncObj__raftLastApplied = index
        self._SyncObj__raftCommitIndex = max(self.raftCommitIndex, index)
        self._face.setRaftCommitIndex(self._SyncObj__raftCommitIndex)
        self._give_up(index)

    def _give_up(self, index: float) -> None:
        """Fail the commands up to this entry: their outcome is not known here."""
        waiting = self._SyncObj__commandsWaitingCommit
        for each in [each for each in waiting if each <= index]:
            for _, done in waiting.pop(each):
                done(None, FAIL_REASON.UNKNOWN_OUTCOME)

    def _refuse_queued(self) -> None:
        while True:
            try:
                _, done = self._SyncObj__commandsQueue.get_nowait()
            except queue.Empty:
                return
            done(None, FAIL_REASON.NOT_LEADER)

    def _step_down(self, term: int) -> None:
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(0)
        self._SyncObj__raftLeader = None

    def _ask_before_election(self, now: float) -> None:
        self._SyncObj__raftElectionDeadline = now + self._SyncObj__generateRaftTimeout()
        self._SyncObj__raftLeader = None
        _, index, term = self._face[-1]
        self._canvass.begin()
        for node in self.otherNodes:
            self._peers.say(node, PreVote(self.raftCurrentTerm + 1, index, term))

    def _seek_admission(self, now: float) -> None:
        """Ask all how far they are once per election timeout, and at once when another one is connected."""
        if self._admission.due(now) and not self._found(now):
            question = Join(self.raftCurrentTerm, self._admission.begin(now))
            for node in self.otherNodes:
                self._peers.say(node, question)

    def _join_reply(self, number: int) -> JoinReply:
        _, index, term = self._face[-1]
        return JoinReply(self.raftCurrentTerm, number, self._face.voter, index, term)

    def _learn(self, node: Any, reply: JoinReply) -> None:
        if not self._face.voter:
            self._admission.answered(node.id, reply)
            self._found(monotonic())

    def _found(self, now: float) -> bool:
        """Begin a log with the other newcomers if that is allowed."""
        founders = self._admission.founders(now, self._face[-1][1])
        if founders:
            self._face.become_voter()
        for node_id in founders:
            self._peers.say(self._peers.nodes[node_id], Founded(self.raftCurrentTerm))
        return bool(founders)

    def _judge(self, node: Any, message: PreVote) -> None:
        """Answer whether the sender would get this vote; of two that ask each other the lower id does not give way."""
        _, index, term = self._face[-1]
        mine, theirs = (term, index), (message.last_term, message.last_index)
        same = theirs == mine and message.term == self.raftCurrentTerm + 1
        rival = self._canvass.asks and same and node.id > self.selfNode.id
        if message.term <= self.raftCurrentTerm:
            self._peers.say(node, NextIndex(self.raftCurrentTerm, 0, reset=False, success=False))
        elif theirs >= mine and not rival and not self._has_leader():
            self._canvass.end()
            self._SyncObj__raftElectionDeadline = monotonic() + self._SyncObj__generateRaftTimeout()
            self._peers.say(node, PreGranted(message.term))

    def _answered(self, node: Any, message: PreGranted) -> None:
        """Start an election that can be won."""
        if message.term != self.raftCurrentTerm + 1 or self._isLeader():
            return
        self._canvass.granted(node.id)
        if self._canvass.won:
            self._SyncObj__raftElectionDeadline = 0.0

    def _has_leader(self) -> bool:
        if self._isLeader():
            return True  # it steps down by itself soon when it has no followers any more
        return self._getLeader() is not None and monotonic() - self._leader_heard < self._timers.election
