"""How a controller with an empty directory comes to vote: what it learns of the others, and when that is enough.

An empty directory is a first start or a lost disk. A controller that lost its disk may have voted, acknowledged entries
and promised to follow no older term, and has forgotten it. Until it is admitted it therefore only receives: it grants
no vote, does not stand for election, and acknowledges nothing, so that no majority depends on what it forgot. It asks
every controller it is connected to (`Join`) in rounds, and each answers with its term and how far its log is
(`JoinReply`). It is admitted in one of two ways:

- **Joining.** Every other controller has answered since this one started, a majority of the group votes, and a leader
  whose term is no lower than the highest in these answers has sent everything it has committed, up to an entry of its
  own term. Every candidate that may still hold a vote of this controller from before has answered with a term at least
  as high as that vote's, and every majority that moved to a term contains a controller that answered after it moved.
- **Founding.** In one round a majority of the group answered that they do not vote either, and none has an entry.
  Then no leader was ever elected, because that takes a majority that votes. The round ends when all have answered or
  its time is over.

Both rest on one assumption: after any disk is lost, a majority of the group still has its files and votes. When more
are lost, newcomers that meet a controller with entries wait (`obstacle`), because only an operator can decide whether
those entries are all there is.
Invariant: answers count for the process that asked; an answer to an earlier round never counts towards founding. Pure.
"""

from __future__ import annotations

from collections.abc import Collection

from controller.consensus.engine import FIRST_ENTRY
from controller.raft.messages import JoinReply


class Admission:
    """What one newcomer has learned since its process started."""

    def __init__(self, others: Collection[str], round_seconds: float) -> None:
        self._others = tuple(sorted(others))
        self._round_seconds = round_seconds
        self._round, self._round_ends = 0, 0.0
        self._answers: dict[str, JoinReply] = {}
        """The latest of each."""
        self._turned_away = False

    @property
    def missing(self) -> tuple[str, ...]:
        """Controllers that have not answered since this one started."""
        return tuple(each for each in self._others if each not in self._answers)

    @property
    def holders(self) -> tuple[str, ...]:
        """Controllers that have entries and vote, those with the latest entry first; if none votes, the others."""
        found = {each: reply for each, reply in self._answers.items() if _entries(reply)}
        voters = {each: reply for each, reply in found.items() if reply.voter} or found
        return tuple(sorted(voters, key=lambda each: (voters[each].last_term, voters[each].last_index), reverse=True))

    def due(self, now: float) -> bool:
        """Whether the round is over, by time or because of `interrupt`."""
        return now >= self._round_ends

    def begin(self, now: float) -> int:
        """Start a new round; its number. Answers to the earlier ones no longer count towards founding."""
        self._round += 1
        self._round_ends = now + self._round_seconds
        return self._round

    def interrupt(self) -> None:
        """End the round without a result: another controller can be asked as well."""
        self._round, self._round_ends = self._round + 1, 0.0

    def answered(self, node_id: str, reply: JoinReply) -> None:
        """Take in what a controller answered."""
        self._answers[node_id] = reply

    def turned_away(self) -> None:
        """A group that exists has refused this newcomer: it founds no other one."""
        self._turned_away = True

    def founders(self, now: float, last_index: int) -> tuple[str, ...]:
        """The other newcomers with which this one, whose log ends so, may begin a log; empty when it may not."""
        answers = {each: reply for each, reply in self._answers.items() if reply.round == self._round}
        newcomers = tuple(each for each, reply in answers.items() if not reply.voter)
        empty = last_index == FIRST_ENTRY[1] and not any(map(_entries, self._answers.values()))
        empty = empty and not self._turned_away
        complete = self.due(now) or len(answers) == len(self._others)
        return newcomers if empty and complete and self._majority(1 + len(newcomers)) else ()

    def may_join(self, term: int) -> bool:
        """Whether this newcomer may vote once it has what a leader of this term has committed."""
        replies = self._answers.values()
        voters = sum(reply.voter for reply in replies)
        if any(reply.refused for reply in replies):
            return False
        return not self.missing and self._majority(voters) and all(term >= reply.term for reply in replies)

    def obstacle(self) -> str:
        """What keeps this newcomer from voting, for logs and people."""
        newcomers = [each for each, reply in self._answers.items() if not reply.voter]
        refusals = [reply.refused for reply in self._answers.values() if reply.refused]
        if refusals and not self._majority(1 + len(newcomers)):
            return refusals[0]
        if self._majority(1 + len(newcomers)) and self.holders:
            return (
                f"a majority of the controllers lost its files, and {', '.join(self.holders)} has entries: stop all "
                f"controllers, copy the consensus directory of {self.holders[0]} to every other one and delete the "
                f"file vote in each"
            )
        if self.missing:
            missing = ", ".join(self.missing)
            return f"its directory was empty: it does not vote before it has reached {missing}, so start it"
        return "its directory was empty: it votes as soon as it has received what the leader has committed"

    def _majority(self, count: int) -> bool:
        return 2 * count > 1 + len(self._others)


def _entries(reply: JoinReply) -> bool:
    return reply.last_index > FIRST_ENTRY[1]
