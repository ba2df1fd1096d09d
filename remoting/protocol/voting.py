"""Who gets a vote and what a candidate makes of the answers: two tables, read from the top, first match wins.

After DLedger's election (its rows and answers by name), with three differences. A vote is stored before it is shown, so
a candidate with a higher term is answered in the same exchange instead of "term not ready, ask again". A trial (Raft's
pre-vote) runs first and changes nothing anywhere. A candidate that the voter does not know may be elected: the entry
that made it a member may not have come here yet. Invariant: a log that is behind can never raise a term, because the
log is judged before the term. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum


class VoteAnswer(IntEnum):
    """What a voter answers."""

    ACCEPT = 0
    REJECT_EXPIRED_LEDGER_TERM = 1
    REJECT_SMALL_LEDGER_END_INDEX = 2
    REJECT_EXPIRED_VOTE_TERM = 3
    REJECT_ALREADY_HAS_LEADER = 4
    REJECT_ALREADY_VOTED = 5
    REJECT_TAKING_LEADERSHIP = 6


@dataclass(frozen=True, slots=True)
class Ballot:
    """A request for a vote and the voter's own state; a place is (term of the last entry, its index)."""

    term: int
    place: tuple[int, int]
    trial: bool
    forced: bool
    own_term: int
    own_place: tuple[int, int]
    voted_for_another: bool
    """In `own_term`."""
    has_leader: bool
    """Whether it heard from another leader within the shortest election timeout, or leads."""
    stands_first: bool
    """Whether it is asking for the same itself, and its id is lower."""


VOTE_RULES: tuple[tuple[VoteAnswer, Callable[[Ballot], bool]], ...] = (
    (VoteAnswer.REJECT_EXPIRED_LEDGER_TERM, lambda of: of.place[0] < of.own_place[0]),
    (VoteAnswer.REJECT_SMALL_LEDGER_END_INDEX, lambda of: of.place < of.own_place),
    (VoteAnswer.REJECT_EXPIRED_VOTE_TERM, lambda of: of.term < of.own_term or (of.trial and of.term == of.own_term)),
    (VoteAnswer.REJECT_ALREADY_HAS_LEADER, lambda of: of.has_leader and not of.forced),
    (VoteAnswer.REJECT_ALREADY_VOTED, lambda of: of.term == of.own_term and of.voted_for_another),
    (VoteAnswer.REJECT_TAKING_LEADERSHIP, lambda of: of.trial and of.stands_first and of.place == of.own_place),
)


def judge(ballot: Ballot) -> VoteAnswer:
    """The answer of the first rule that applies, ACCEPT when none does."""
    return next((answer for answer, applies in VOTE_RULES if applies(ballot)), VoteAnswer.ACCEPT)


class CandidateVerdict(IntEnum):
    """What a candidate does next."""

    OPEN = 0
    """Wait for more answers until the election timeout."""
    PASSED = 1
    WAIT = 2
    """It cannot win this time, and asks again later."""
    YIELD = 3
    """Most have more than it: it asks again later still, so that one of them comes first."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The answers to one candidate, its own among them."""

    answers: Mapping[str, VoteAnswer]
    voters: frozenset[str]

    def majority_of(self, *answers: VoteAnswer) -> bool:
        """Whether a majority of the voters gave one of these answers."""
        given = sum(self.answers.get(each) in answers for each in self.voters)
        return 2 * given > len(self.voters)

    @property
    def undecided(self) -> int:
        """Voters without an answer."""
        return sum(each not in self.answers for each in self.voters)

    @property
    def accepted(self) -> int:
        """Voters that accepted."""
        return sum(self.answers.get(each) is VoteAnswer.ACCEPT for each in self.voters)


_LEDGERS = (VoteAnswer.REJECT_EXPIRED_LEDGER_TERM, VoteAnswer.REJECT_SMALL_LEDGER_END_INDEX)

TALLY_RULES: tuple[tuple[CandidateVerdict, Callable[[Tally], bool]], ...] = (
    (CandidateVerdict.PASSED, lambda tally: tally.majority_of(VoteAnswer.ACCEPT)),
    (CandidateVerdict.YIELD, lambda tally: tally.majority_of(*_LEDGERS)),
    (CandidateVerdict.WAIT, lambda tally: 2 * (tally.accepted + tally.undecided) <= len(tally.voters)),
)


def count(tally: Tally) -> CandidateVerdict:
    """What the first rule that applies says, OPEN when none does."""
    return next((verdict for verdict, applies in TALLY_RULES if applies(tally)), CandidateVerdict.OPEN)
