"""What must hold while the members change: who elects, who counts, and how many changes are under way.

Invariant: a rule is judged by what was said and written, never by what the nodes believe. Engines whose members are
fixed break none of them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from controller.raft.membership import Membership
from controller.raft.messages import CONFIGURATION, AppendAnswer, Voted
from remoting.protocol.voting import VoteAnswer


class Violation(AssertionError):
    """A rule was broken."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


class MemberJudge:
    """Votes, acknowledgements and changes of one world."""

    def __init__(self) -> None:
        self.agreed: tuple[int, Membership] = (0, Membership(()))
        """The latest members that are committed anywhere, with their entry."""
        self.known: dict[str, tuple[int, Membership]] = {}
        """What each node last went by."""
        self.committed = 0
        """The last entry that any node knew to be committed."""
        self._votes: defaultdict[tuple[int, str], set[str]] = defaultdict(set)
        """Who voted for whom in a term."""
        self._acknowledged: defaultdict[tuple[int, str], int] = defaultdict(int)
        """The last entry that each confirmed to the leader of a term."""

    def said(self, node_id: str, node: Any, message: object, peer: str) -> None:
        """A vote or an acknowledgement counts only from the directory that the group knows."""
        votes = isinstance(message, Voted) and message.answer is VoteAnswer.ACCEPT and not message.trial
        confirms = isinstance(message, AppendAnswer) and message.matched and message.round > 0
        if votes:
            self._votes[node.term, peer].add(node_id)
        if isinstance(message, AppendAnswer) and message.matched:
            place = node.term, node_id
            self._acknowledged[place] = max(self._acknowledged[place], message.index)
        if votes or confirms:
            named = next((each.identity for each in self.agreed[1].places if each.node_id == node_id), "")
            if named and named != node.identity:
                raise Violation("an emptied member decides nothing", f"{node_id} is {node.identity}, not {named}")

    def look(self, node_id: str, node: Any, *, is_new: bool) -> None:
        """After whatever a node did; `is_new`: it has just become the leader of its term."""
        raft = getattr(node, "raft", None)
        if raft is None:
            return
        members, committed = raft.members, raft.log.committed
        self.committed = max(self.committed, committed)
        self.known[node_id] = members.index, members.current
        if self.agreed[0] < members.index <= committed:
            self.agreed = members.index, members.current
        if raft.leading is not None:
            self._look_at_leader(node_id, raft, is_new=is_new)

    def answered(self, index: int, committed: int) -> None:
        """An operator was told that a change is done."""
        if index > committed:
            raise Violation("a change is done when it is committed", f"entry {index} of {committed}")

    def _look_at_leader(self, node_id: str, raft: Any, *, is_new: bool) -> None:
        members, log, term = raft.members, raft.log, raft.hard.term
        voters = set(members.current.voters)
        if is_new and 2 * len((self._votes[term, node_id] | {node_id}) & voters) <= len(voters):
            raise Violation("its own voters elect a leader", f"{node_id} in term {term}: {self._votes[term, node_id]}")
        # A new leader may not know yet that a change is committed; somebody did when the next one was proposed.
        start = max(log.first_index, self.committed) + 1
        waiting = [each for each in log.entries(start, log.last_index + 1, 1 << 62) if _names(each)]
        if len(waiting) > 1:
            raise Violation("one change at a time", f"{node_id} has {len(waiting)} that are not committed")
        if waiting and len(set(members.at(waiting[0][1] - 1).voters) ^ voters) > 1:
            raise Violation("one voter at a time", f"{node_id} goes to {sorted(voters)}")
        if log.term(log.committed) == term and not waiting and log.committed > members.index:
            have = {each for each in voters if self._acknowledged[term, each] >= log.committed} | {node_id}
            if 2 * len(have & voters) <= len(voters):
                raise Violation(
                    "a majority of the voters commits", f"{node_id} committed {log.committed}: {sorted(have)}"
                )


def _names(entry: tuple[bytes, int, int]) -> bool:
    return entry[0][:1] == CONFIGURATION
