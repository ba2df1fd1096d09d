"""What must hold between the nodes at every moment: Raft's rules, and the guarantees to clients.

Invariant: a rule is judged by what happened, never by what the nodes believe; the first breach raises Violation.
"""

from __future__ import annotations

from typing import Any

from controller.consensus.journal import Entry, RaftSnapshot
from controller.consensus.wire import NextIndex
from controller.raft.messages import AppendAnswer
from tests.sim.raft.member_rules import MemberJudge, Violation


def acknowledged_up_to(message: object) -> int:
    """The entry up to which a message says that the sender's log is the leader's; 0 when it says nothing."""
    if isinstance(message, NextIndex):
        return message.next_index - 1 if message.success else 0
    return message.index if isinstance(message, AppendAnswer) and message.matched else 0


class Judge:
    """Records what was sent, written, committed, applied and answered."""

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        """Of each term."""
        self.history: list[bytes] = []
        """What any machine applied, in order."""
        self.places: dict[bytes, int] = {}
        self.answered: list[bytes] = []
        self._entries: dict[tuple[int, int], bytes] = {}
        self._before: dict[tuple[int, int], int] = {}
        self._committed: dict[int, Entry] = {}
        self._committed_in: dict[int, int] = {}
        """Term in which each was."""
        self._committed_here: dict[str, int] = {}
        self._states: dict[int, bytes] = {}
        self._votes: dict[str, tuple[int, str | None]] = {}
        self._shown: dict[str, tuple[int, str | None]] = {}
        self._acknowledged: dict[str, tuple[int, int]] = {}
        """(term, last index) up to which a follower confirmed the leader's log."""
        self._applied: dict[str, tuple[int, int]] = {}
        self.members = MemberJudge()
        self.floor = 0
        """Commands that some answer has shown: whatever is asked from now on comes behind them."""

    def entered(self, before: Entry | None, entry: Entry) -> None:
        """Log matching: an index and a term are one entry, everywhere, with one log before it."""
        command, index, term = entry
        if self._entries.setdefault((index, term), command) != command:
            raise Violation("log matching", f"two entries {index} of term {term}")
        if before is not None and self._before.setdefault((index, term), before[2]) != before[2]:
            raise Violation("log matching", f"two logs before entry {index} of term {term}")

    def cut(self, node_id: str, node: Any, end: int) -> None:
        """Only a proven conflict truncates: never entries acknowledged to this term's leader, or a leader's own log."""
        term, index = self._acknowledged.get(node_id, (0, 0))
        if node is not None and node.is_leader:
            raise Violation("a leader only appends", f"{node_id} cut its log to {end} in term {node.term}")
        if end < index:
            if node is None or node.term == term:
                raise Violation("only a conflict truncates", f"{node_id} cut {end + 1}..{index}, of term {term}")
            self._acknowledged[node_id] = (term, end)

    def replaced(self, node_id: str, end: int, term: int) -> None:
        """A start finds a state that was kept before the crash, and a log that contradicts its last entry."""
        known, index = self._acknowledged.get(node_id, (0, 0))
        if end < index and term > known:
            self._acknowledged[node_id] = (known, end)

    def said(self, node_id: str, node: Any, message: object, peer: str) -> None:
        """Whatever a node says shows its term and its vote; some messages also how far its log is the leader's."""
        self._shown[node_id] = (node.term, node.voted_for)
        self.members.said(node_id, node, message, peer)
        confirmed = acknowledged_up_to(message)
        if confirmed:
            term, index = self._acknowledged.get(node_id, (0, 0))
            new = confirmed
            self._acknowledged[node_id] = (message.term, max(new, index) if message.term == term else new)

    def booted(self, node_id: str, node: Any) -> None:
        """A crash takes nothing back that was shown."""
        term, vote = node.term, node.voted_for
        shown = self._shown.get(node_id, (0, None))
        if term < shown[0] or (term == shown[0] and shown[1] not in (None, vote)):
            raise Violation("term and vote survive", f"{node_id} showed {shown} and came back with {(term, vote)}")
        end, acknowledged = node.journal[-1][1], self._acknowledged.get(node_id, (0, 0))
        if end < acknowledged[1]:
            raise Violation("acknowledged entries survive", f"{node_id} has {end} of {acknowledged}")
        self._votes[node_id] = (term, vote)
        self._committed_here[node_id] = 0
        self._applied.pop(node_id, None)

    def wiped(self, node_id: str) -> None:
        """A node without files keeps no promise."""
        for each in (self._shown, self._acknowledged, self._votes):
            each.pop(node_id, None)

    def snapshot(self, snapshot: RaftSnapshot) -> None:
        """Snapshots of one index are one state."""
        if self._states.setdefault(snapshot.last[1], snapshot.state) != snapshot.state:
            raise Violation("snapshots are equal", f"two states after entry {snapshot.last[1]}")

    def look(self, node_id: str, node: Any, machine: Any) -> None:
        """After whatever a node did."""
        self._look_at_vote(node_id, node)
        self.members.look(node_id, node, is_new=node.is_leader and node.term not in self.leaders)
        if node.is_leader:
            self._look_at_leader(node_id, node)
        self._look_at_commits(node_id, node)
        self.applied(node_id, machine)

    def applied(self, node_id: str, machine: Any) -> None:
        """A machine goes through the one history, forward, and no command is in it twice."""
        words = machine.words
        restored, checked = self._applied.get(node_id, (machine.restored, 0))
        if restored != machine.restored:
            if len(words) < checked:
                raise Violation("states go forward", f"{node_id} went from {checked} to {len(words)} commands")
            checked = 0
        common = min(len(words), len(self.history))
        if words[checked:common] != self.history[checked:common]:
            raise Violation("one order of commands", f"{node_id} applied something else after {checked}")
        for word in words[common:]:
            if word in self.places:
                raise Violation("applied once", f"{word!r} is command {self.places[word]} and {len(self.history) + 1}")
            self.history.append(word)
            self.places[word] = len(self.history)
        self._applied[node_id] = (machine.restored, len(words))

    def answer(self, word: bytes, place: int | None, floor: int = 0) -> None:
        """A client got the answer that its command was applied, and its number in the order.

        `floor` is that of the moment when it asked first: with `read`, this is linearizability, the order being known.
        """
        if word not in self.places:
            raise Violation("answers are true", f"{word!r} was answered and never applied")
        if place is not None and self.places[word] != place:
            raise Violation("answers are true", f"{word!r} is command {self.places[word]}, answered was {place}")
        if self.places[word] <= floor:
            raise Violation("linearizable", f"{word!r} is command {self.places[word]}, and {floor} were seen before it")
        self.answered.append(word)
        self.floor = max(self.floor, self.places[word])

    def read(self, node_id: str, machine: Any, expected: int, floor: int) -> None:
        """A read shows at least what was answered, or shown to another reader, before it was asked."""
        if len(machine.words) < floor:
            raise Violation("linearizable", f"{node_id} shows {len(machine.words)} commands, {floor} were seen before")
        self.floor = max(self.floor, len(machine.words))
        seen = set(machine.words)
        missing = [each for each in self.answered[:expected] if each not in seen]
        if missing:
            raise Violation("reads are not stale", f"{node_id} lacks {missing[:3]}")

    def _look_at_vote(self, node_id: str, node: Any) -> None:
        now = (node.term, node.voted_for)
        before = self._votes.get(node_id, now)
        if now[0] < before[0] or (now[0] == before[0] and before[1] not in (None, now[1])):
            raise Violation("one vote per term", f"{node_id} went from {before} to {now}")
        self._votes[node_id] = now

    def _look_at_leader(self, node_id: str, node: Any) -> None:
        term = node.term
        known = self.leaders.get(term)
        if known is None:
            self.leaders[term] = node_id
            journal = node.journal
            first = journal[0][1]
            for index, entry in self._committed.items():
                # Late votes may still make a leader of a term that is over; it can commit nothing.
                earlier = self._committed_in[index] < term
                if earlier and index >= first and (index > journal[-1][1] or journal[index - first] != entry):
                    raise Violation("leader completeness", f"{node_id} leads term {term} without entry {index}")
        elif known != node_id:
            raise Violation("one leader per term", f"{known} and {node_id} in term {term}")

    def _look_at_commits(self, node_id: str, node: Any) -> None:
        journal, commit = node.journal, node.committed
        first, end = journal[0][1], journal[-1][1]
        if commit > end:
            raise Violation("what is committed is there", f"{node_id} commits {commit} of {end}")
        for index in range(max(first, self._committed_here.get(node_id, 0) + 1), commit + 1):
            entry = journal[index - first]
            self._committed_in.setdefault(index, node.term)
            if self._committed.setdefault(index, entry) != entry:
                raise Violation("one committed log", f"{node_id} commits another entry {index}")
        self._committed_here[node_id] = max(commit, self._committed_here.get(node_id, 0))
