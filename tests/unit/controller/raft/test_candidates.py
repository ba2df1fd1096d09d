"""What a candidate makes of the answers, row by row of DLedger's candidate table; where ours differs, our answer."""

from __future__ import annotations

from controller.raft.core import HardState, RaftRole
from controller.raft.messages import StandNow, Voted, VoteRequest
from remoting.protocol.voting import VoteAnswer
from tests.unit.controller.raft.group import IDS, Group, elected, entries

FIVE = ("a", "b", "c", "d", "e")


def standing(ids=IDS, **options):
    """A group in which `a` is a candidate in term 1, its requests lost."""
    group = Group(*ids, **options)
    group["a"].step(0.0, "b", StandNow(group["a"].hard.term))
    group.settle("a")
    group.links.clear()
    assert group["a"].role is RaftRole.CANDIDATE
    return group


def asked_again(group, seconds, node_id="a"):
    """How long a member waits before it asks for anything, up to some seconds; None: it does not."""
    begun = group.now
    while group.now < begun + seconds:
        group.now += 0.05
        group[node_id].tick(group.now)
        group.settle(node_id)
        if group.links:
            return round(group.now - begun, 2)
    return None


def test_row_known_max_term_a_candidate_takes_a_greater_term_and_stands_again_later():
    """WAIT_TO_VOTE_NEXT: it follows into that term, without a vote in it, and asks for the next after an interval."""
    group = standing()
    group["a"].step(0.0, "b", Voted(7, VoteAnswer.REJECT_EXPIRED_VOTE_TERM))
    assert (group["a"].role, group["a"].hard) == (RaftRole.FOLLOWER, HardState(7, None))
    group.settle("a")
    assert 0.9 < asked_again(group, 3.0) < 2.1
    assert group.waiting("a", "b") == [VoteRequest(8, 1, 0, trial=True)]


def test_row_has_leader_one_that_cannot_hear_the_leader_asks_again_in_the_same_term():
    """WAIT_TO_REVOTE: as often as it asks, nobody's term grows, so that the leader is not disturbed."""
    group = elected()
    group.cut.add(("a", "c"))
    group.pass_time(20)
    group.links.clear()
    assert asked_again(group, 3.0, "c") is not None
    assert group.waiting("c", "b") == [VoteRequest(2, 2, 1, trial=True)]
    assert {raft.hard.term for raft in group.members.values()} == {1}
    assert group.leaders == ["a"]


def test_row_too_few_answers_it_asks_again_in_the_same_term():
    """WAIT_TO_REVOTE: a trial without answers is repeated, however often, for the same term."""
    group = Group(*IDS)
    group.down |= {"b", "c"}
    group.pass_time(20)
    group.links.clear()
    assert asked_again(group, 3.0) is not None
    assert group.waiting("a", "b") == [VoteRequest(1, 1, 0, trial=True)]
    assert group["a"].hard == HardState(0, None)


def test_row_bigger_ledgers_it_waits_longer_so_that_one_with_more_comes_first():
    """WAIT_TO_REVOTE with the longest interval added: twice ours, while others wait once."""
    group = standing(FIVE, logs={each: entries(1) for each in FIVE[1:]})
    for each in ("b", "c", "d"):
        group["a"].step(0.0, each, Voted(1, VoteAnswer.REJECT_SMALL_LEDGER_END_INDEX))
    assert group["a"].role is RaftRole.FOLLOWER
    assert asked_again(group, 5.0) >= 2.0


def test_row_passed_with_a_majority_it_leads_at_once():
    """Two of three, its own vote among them; the third's answer changes nothing."""
    group = standing()
    group["a"].step(0.0, "b", Voted(1, VoteAnswer.ACCEPT))
    assert (group["a"].role, group["a"].leader) == (RaftRole.LEADER, "a")
    group["a"].step(0.0, "c", Voted(1, VoteAnswer.REJECT_ALREADY_VOTED))
    assert group["a"].role is RaftRole.LEADER


def test_row_passed_who_is_no_voter_does_not_count():
    """Neither learners nor strangers make a majority, and nobody counts twice."""
    group = standing(FIVE, learners=("l",))
    for each in ("l", "z", "b", "b"):
        group["a"].step(0.0, each, Voted(1, VoteAnswer.ACCEPT))
    assert group["a"].role is RaftRole.CANDIDATE
    group["a"].step(0.0, "c", Voted(1, VoteAnswer.ACCEPT))
    assert group["a"].role is RaftRole.LEADER


def test_row_passed_answers_to_an_earlier_term_or_to_the_trial_elect_nobody():
    """A late answer is about another question."""
    group = standing(terms=dict.fromkeys(IDS, 4))
    assert group["a"].hard.term == 5
    group["a"].step(0.0, "b", Voted(4, VoteAnswer.ACCEPT))
    group["a"].step(0.0, "c", Voted(5, VoteAnswer.ACCEPT, trial=True))
    assert group["a"].role is RaftRole.CANDIDATE


def test_row_revote_immediately_is_not_needed_voters_of_an_older_term_answer_at_once():
    """DLedger's first round only raises the voters' terms. Here it elects, with voters in three terms."""
    group = Group(*IDS, terms={"a": 6, "b": 0, "c": 3})
    group.pass_time(1.1)
    assert group.leaders == ["a"]
    assert {raft.hard.term for raft in group.members.values()} == {7}


def test_row_else_a_split_vote_ends_in_another_trial_after_a_random_time():
    """WAIT_TO_VOTE_NEXT: it does not stand in the next term at once, for the others would do the same."""
    group = standing()
    for each in ("b", "c"):
        group["a"].step(0.0, each, Voted(1, VoteAnswer.REJECT_ALREADY_VOTED))
    assert (group["a"].role, group["a"].hard.term) == (RaftRole.FOLLOWER, 1)
    assert 0.9 < asked_again(group, 3.0) < 2.1
    assert group.waiting("a", "b") == [VoteRequest(2, 1, 0, trial=True)]


def test_need_increase_term_immediately_is_answered_by_the_trial():
    """DLedger raises its term when it meets a greater one and asks after the next interval; here nobody has to.

    A member that was away for long comes back with the term it left with, and no leader is lost.
    """
    group = elected()
    group.down.add("b")
    group.pass_time(30)
    group.down.clear()
    group.pass_time(1)
    assert group.leaders == ["a"]
    assert {raft.hard.term for raft in group.members.values()} == {1}
