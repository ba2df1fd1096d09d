"""Every row of the two tables, and that the first that applies decides."""

from __future__ import annotations

import pytest

from remoting.protocol.voting import VOTE_RULES, Ballot, CandidateVerdict, Tally, VoteAnswer, count, judge

GOOD = Ballot(
    term=5, place=(4, 9), trial=False, forced=False, own_term=4, own_place=(4, 9),
    voted_for_another=False, has_leader=False, stands_first=False,
)  # fmt: skip


def changed(**values):
    """The good request with other facts."""
    return Ballot(**{name: values.get(name, getattr(GOOD, name)) for name in Ballot.__slots__})


@pytest.mark.parametrize(
    ("facts", "answer"),
    [
        ({}, VoteAnswer.ACCEPT),
        ({"place": (3, 99)}, VoteAnswer.REJECT_EXPIRED_LEDGER_TERM),
        ({"place": (4, 8)}, VoteAnswer.REJECT_SMALL_LEDGER_END_INDEX),
        ({"place": (5, 1)}, VoteAnswer.ACCEPT),
        ({"term": 3}, VoteAnswer.REJECT_EXPIRED_VOTE_TERM),
        ({"term": 3, "place": (4, 8)}, VoteAnswer.REJECT_SMALL_LEDGER_END_INDEX),
        ({"term": 4, "trial": True}, VoteAnswer.REJECT_EXPIRED_VOTE_TERM),
        ({"term": 4}, VoteAnswer.ACCEPT),
        ({"has_leader": True}, VoteAnswer.REJECT_ALREADY_HAS_LEADER),
        ({"has_leader": True, "forced": True}, VoteAnswer.ACCEPT),
        ({"term": 4, "voted_for_another": True}, VoteAnswer.REJECT_ALREADY_VOTED),
        ({"voted_for_another": True}, VoteAnswer.ACCEPT),
        ({"trial": True, "stands_first": True}, VoteAnswer.REJECT_TAKING_LEADERSHIP),
        ({"trial": True, "stands_first": True, "place": (4, 10)}, VoteAnswer.ACCEPT),
        ({"stands_first": True}, VoteAnswer.ACCEPT),
    ],
)
def test_the_answer_to_a_request(facts, answer):
    assert judge(changed(**facts)) is answer


def test_every_answer_but_acceptance_has_one_row():
    assert {answer for answer, _ in VOTE_RULES} == set(VoteAnswer) - {VoteAnswer.ACCEPT}
    assert len(VOTE_RULES) == len(VoteAnswer) - 1


@pytest.mark.parametrize(
    ("answers", "verdict"),
    [
        ("A", CandidateVerdict.OPEN),
        ("AA", CandidateVerdict.OPEN),
        ("AAA", CandidateVerdict.PASSED),
        ("AAARR", CandidateVerdict.PASSED),
        ("ALLL", CandidateVerdict.YIELD),
        ("ARRR", CandidateVerdict.WAIT),
        ("ARR", CandidateVerdict.OPEN),
        ("AARR", CandidateVerdict.OPEN),
    ],
)
def test_what_a_candidate_of_five_makes_of_the_answers(answers, verdict):
    """A: accepted, R: voted already, L: a longer log; who is not named has not answered."""
    kinds = {
        "A": VoteAnswer.ACCEPT,
        "R": VoteAnswer.REJECT_ALREADY_VOTED,
        "L": VoteAnswer.REJECT_SMALL_LEDGER_END_INDEX,
    }
    given = {f"n{number}": kinds[each] for number, each in enumerate(answers)}
    assert count(Tally(given, frozenset(f"n{number}" for number in range(5)))) is verdict
