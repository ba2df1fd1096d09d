"""Heartbeats at both ends, row by row of DLedger's table; they are AppendEntries here, with or without entries."""

from __future__ import annotations

import pytest

from controller.raft.core import Contradiction, HardState, RaftRole
from controller.raft.messages import AppendAnswer, AppendEntries, StandNow
from tests.unit.controller.raft.group import IDS, Group, elected, entries


def beat(term, number=1):
    return AppendEntries(term, number, 1, 1, 0, [])


# ---- the follower's side


def test_expired_term_the_answer_has_the_followers_term():
    """And refreshes no timer: the sender leads nobody."""
    group = Group(*IDS, terms={"b": 5})
    (answer,) = group.say("b", "a", beat(4))
    assert (answer.term, answer.matched) == (5, False)
    assert group["b"].leader is None


def test_same_term_and_leader_the_timer_begins_anew():
    """As long as heartbeats come, nobody stands."""
    group = elected()
    for number in range(40):
        group.now += 0.5
        group["b"].step(group.now, "a", beat(1, number))
        group["b"].tick(group.now)
        group.settle("b")
    assert group["b"].role is RaftRole.FOLLOWER
    assert group["b"].leader == "a"


def test_same_term_and_no_leader_a_candidate_follows():
    """Somebody else was elected in its term."""
    group = Group(*IDS)
    group["b"].step(0.0, "a", StandNow(0))
    group.settle("b")
    assert group["b"].role is RaftRole.CANDIDATE
    (*_, answer) = group.say("b", "a", beat(1))
    assert answer.matched
    assert (group["b"].role, group["b"].leader) == (RaftRole.FOLLOWER, "a")
    assert group["b"].hard == HardState(1, "b"), "its vote of this term stays"


def test_inconsistent_leader_two_in_one_term_end_the_member_that_sees_it():
    """DLedger answers and goes on. Some disk has forgotten a vote by then: whoever goes on may make two histories."""
    group = elected()
    with pytest.raises(Contradiction, match="a and c both lead term 1"):
        group["b"].step(group.now, "c", beat(1))
    with pytest.raises(Contradiction, match="a and c both lead term 1"):
        group["a"].step(group.now, "c", beat(1))


def test_greater_term_a_follower_follows_in_the_same_exchange():
    """DLedger becomes a candidate and says "term not ready". The term is on disk before this answer is sent."""
    group = elected()
    raft = group["b"]
    raft.step(group.now, "c", beat(9))
    ready = raft.ready()
    assert ready.hard == HardState(9, None)
    ((receiver, answer),) = ready.messages
    assert (receiver, answer.term, answer.matched) == ("c", 9, True)
    assert (raft.role, raft.leader) == (RaftRole.FOLLOWER, "c")


# ---- the leader's side


def test_a_greater_term_in_an_answer_ends_the_lead():
    """Whoever said it, and whatever else the answer says."""
    group = elected()
    group["a"].step(group.now, "c", AppendAnswer(4, 1, matched=True, index=2))
    assert (group["a"].role, group["a"].hard) == (RaftRole.FOLLOWER, HardState(4, None))


def test_a_majority_of_successes_keeps_the_lead():
    """One of three may be silent for ever."""
    group = elected()
    group.down.add("c")
    group.pass_time(20)
    assert group.leaders == ["a"]


def test_successes_and_not_ready_are_one_round_here():
    """A voter of an older term answers the first heartbeat like all others: nothing is sent again at once."""
    group = elected()
    group["c"].hard = HardState(0, None)
    group["c"].leader = None
    group.pass_time(0.15)
    assert (group["c"].hard.term, group["c"].leader) == (1, "a")


def test_no_majority_for_the_fallback_time_ends_the_lead_and_readers_are_refused():
    """Check-quorum: it may have a successor, so it answers nobody any more."""
    group = elected()
    group.down |= {"b", "c"}
    group.pass_time(1.5)
    assert group.leaders == ["a"]
    group["a"].read("r")
    group.pass_time(1.0)
    assert group.leaders == []
    assert group.reads[-1] == ("r", False)
    assert group["a"].hard.term == 1


def test_learners_and_members_that_may_not_vote_keep_no_leader_in_office():
    """Their answers say nothing about who else was elected."""
    group = elected(learners=("d",))
    group.down.add("c")
    group["b"].admitted = False
    group.pass_time(3.0)
    assert group.leaders == []


def test_a_heartbeat_tells_how_far_the_leader_has_committed():
    """DLedger's COMMIT is part of it: a follower applies what is committed without another entry."""
    group = Group(*IDS, logs={"b": entries(1, 1)})
    group.say("b", "a", AppendEntries(1, 1, 1, 3, 1, []))
    assert group.applied["b"] == []
    group.say("b", "a", AppendEntries(1, 2, 3, 3, 1, []))
    assert group.applied["b"] == [b"\x002", b"\x003"]
