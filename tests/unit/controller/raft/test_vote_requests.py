"""What a voter answers, row by row of DLedger's vote-request table, in its order; where ours differs, our answer."""

from __future__ import annotations

import pytest

from controller.raft.core import HardState, RaftRole
from controller.raft.messages import StandNow, Voted, VoteRequest
from remoting.protocol.voting import VoteAnswer
from tests.unit.controller.raft.group import IDS, Group, elected, entries


def voter(last_terms=(1, 1), term=3):
    """A group whose member `b` has such entries from index 2 on, and is in such a term."""
    return Group(*IDS, logs={"b": entries(*last_terms)}, terms=dict.fromkeys(IDS, term))


def test_row_unknown_leader_a_candidate_that_is_not_known_is_judged_like_any_other():
    """DLedger refuses it. The entry that made it a member may not have come here yet."""
    group = voter()
    assert group.ask("b", "z", VoteRequest(4, 3, 1)) == Voted(4, VoteAnswer.ACCEPT)
    assert group["b"].hard == HardState(4, "z")


def test_row_unexpected_leader_a_candidate_asks_the_others_and_never_itself():
    """Its own vote counts where it stands; who comes with this member's id from elsewhere is refused by the links."""
    group = Group(*IDS)
    group["a"].step(0.0, "b", StandNow(0))
    group.settle("a")
    assert {receiver for _, receiver in group.links} == {"b", "c"}
    assert group["a"].hard == HardState(1, "a")


@pytest.mark.parametrize("trial", [True, False])
def test_row_expired_ledger_term_a_last_entry_of_an_older_term_gets_no_vote_and_raises_no_term(trial):
    """However high the term it asks for, and however long its log."""
    group = voter(last_terms=(1, 2))
    answer = group.ask("b", "a", VoteRequest(99, 50, 1, trial))
    assert answer == Voted(3, VoteAnswer.REJECT_EXPIRED_LEDGER_TERM, trial)
    assert group["b"].hard == HardState(3, None)


@pytest.mark.parametrize("trial", [True, False])
def test_row_small_ledger_end_index_a_shorter_log_gets_no_vote_and_raises_no_term(trial):
    """Of two logs that end in the same term the longer one has everything that is committed."""
    group = voter(last_terms=(1, 1))
    answer = group.ask("b", "a", VoteRequest(99, 2, 1, trial))
    assert answer == Voted(3, VoteAnswer.REJECT_SMALL_LEDGER_END_INDEX, trial)
    assert group["b"].hard == HardState(3, None)


def test_row_expired_vote_term_the_answer_has_the_voters_term():
    """So that the candidate catches up with it instead of asking again in the same term."""
    group = voter()
    assert group.ask("b", "a", VoteRequest(2, 3, 1)) == Voted(3, VoteAnswer.REJECT_EXPIRED_VOTE_TERM)


def test_row_already_has_leader_a_voter_that_follows_one_refuses_and_keeps_its_term():
    """DLedger asks this only in its own term; here no term is raised while a leader is heard."""
    group = elected()
    for term in (1, 2):
        answer = group.ask("b", "c", VoteRequest(term, 2, 1))
        assert answer == Voted(1, VoteAnswer.REJECT_ALREADY_HAS_LEADER)
    assert group["b"].hard.term == 1


def test_row_already_voted_one_vote_a_term_and_the_same_candidate_may_ask_again():
    """Its first answer may have been lost."""
    group = voter()
    assert group.ask("b", "a", VoteRequest(4, 3, 1)).answer is VoteAnswer.ACCEPT
    assert group.ask("b", "c", VoteRequest(4, 9, 1)) == Voted(4, VoteAnswer.REJECT_ALREADY_VOTED)
    assert group.ask("b", "a", VoteRequest(4, 3, 1)) == Voted(4, VoteAnswer.ACCEPT)


def test_row_term_not_ready_a_greater_term_is_answered_in_the_same_exchange():
    """DLedger says "term not ready, ask again". Here term and vote are in the hard state that is written before."""
    group = voter()
    raft = group["b"]
    raft.step(group.now, "a", VoteRequest(9, 3, 1))
    ready = raft.ready()
    assert (ready.hard, ready.early) == (HardState(9, "a"), [])
    assert ready.messages == [("a", Voted(9, VoteAnswer.ACCEPT))]


def test_row_term_small_than_ledger_is_said_by_an_earlier_row():
    """A candidate's last entry is of no later term than its own, so the log or the voter's term refuses it first."""
    group = voter(last_terms=(1, 3))
    assert group.ask("b", "a", VoteRequest(2, 9, 2)).answer is VoteAnswer.REJECT_EXPIRED_LEDGER_TERM
    forged = group.ask("b", "a", VoteRequest(2, 9, 7))
    assert forged == Voted(3, VoteAnswer.REJECT_EXPIRED_VOTE_TERM)


def test_row_taking_leadership_of_two_that_stand_with_equal_logs_the_lower_id_goes_on():
    """In the trial, so that a split vote does not cost a term; a longer log is not held up by it."""
    group = voter(term=1)
    group["b"].tick(1.5)
    group.settle("b")
    assert group["b"].role is RaftRole.TRIAL
    assert group.ask("b", "c", VoteRequest(2, 3, 1, trial=True)).answer is VoteAnswer.REJECT_TAKING_LEADERSHIP
    assert group.ask("b", "c", VoteRequest(2, 4, 1, trial=True)).answer is VoteAnswer.ACCEPT
    assert group["b"].role is RaftRole.FOLLOWER


def test_row_accept_a_trial_that_is_granted_stores_nothing_and_a_vote_is_stored():
    """Whoever asks for a trial gets its answer in the term that it asked for."""
    group = voter()
    assert group.ask("b", "a", VoteRequest(4, 3, 1, trial=True)) == Voted(4, VoteAnswer.ACCEPT, trial=True)
    assert group["b"].hard == HardState(3, None)
    assert group.ask("b", "c", VoteRequest(4, 3, 1)) == Voted(4, VoteAnswer.ACCEPT)
    assert group["b"].hard == HardState(4, "c")
