"""Who is elected: for each rule the history that ends in two leaders, or in one that lacks something, without it."""

from __future__ import annotations

import pytest

from controller.raft.core import Contradiction
from controller.raft.messages import AppendEntries, Voted, VoteRequest
from remoting.protocol import voting
from remoting.protocol.voting import VoteAnswer
from tests.support.plants import Plant
from tests.unit.controller.raft.counterexamples.rules import CORE, LEADING, counterexample, without
from tests.unit.controller.raft.counterexamples.script import Script
from tests.unit.controller.raft.group import IDS, entries


def only_the_length_is_judged(patch):
    """A plant: the longer log is the better one."""
    shorter = VoteAnswer.REJECT_SMALL_LEDGER_END_INDEX, lambda of: of.place[1] < of.own_place[1]
    patch.setattr(voting, "VOTE_RULES", (shorter, *voting.VOTE_RULES[2:]))


@counterexample(
    "a vote is on disk before it is shown",
    Plant("sent-before-written", CORE + "ready", "ready.messages += work.outbox", "ready.early += work.outbox"),
)
def test_a_voter_whose_power_fails_votes_again_and_nobody_counts_the_first_vote():
    """c answers a, loses power before it has written that, and gives b the vote of the same term."""
    script = Script(*IDS)
    script.stand("a")
    script.failing.add("c")
    script.pass_on("a", "c", answered=False)
    script.lose("a", "b")
    script.elect("b", "c")
    script.deliver("c", "a")
    assert script.leaders == ["b"]


@counterexample(
    "one vote a term",
    without(VoteAnswer.REJECT_ALREADY_VOTED),
    Plant("vote-not-noted", CORE + "_vote", "HardState(asked.term, sender)", "HardState(asked.term, None)"),
)
def test_two_candidates_of_a_term_ask_the_same_voter():
    """a and b stand at once, and c hears a first."""
    script = Script(*IDS)
    script.stand("a")
    script.stand("b")
    for each in ("a", "b"):
        script.deliver(each, "c")
    for each in ("a", "b"):
        script.deliver("c", each)
    assert script.leaders == ["a"]


@counterexample(
    "no vote in a term that is over",
    without(VoteAnswer.REJECT_EXPIRED_VOTE_TERM),
)
def test_a_request_of_an_older_term_comes_late():
    """c has elected b in term 2 when a's request of term 1 arrives; c would go back to that term and follow a there."""
    script = Script(*IDS)
    script.stand("a")
    late = script.lose("a", "c")
    script["b"].step(script.now, "a", AppendEntries(1, 1, 1, 1, 0, []))
    script.settle("b")
    script.lose("b", "a")
    script.elect("b", "c")
    beats = script.lose("b", "c")
    script.take("c", "a", *late)
    script.deliver("c", "a")
    script.pass_on("a", "c")
    script.take("c", "b", *beats)
    script.pass_on("c", "b")
    assert script["c"].hard.term == 2
    assert script.leaders == ["b"]


@counterexample(
    "no vote for a shorter log",
    without(VoteAnswer.REJECT_SMALL_LEDGER_END_INDEX),
)
def test_a_candidate_lacks_what_a_majority_has():
    """a and b commit an entry of their term; a dies, and c, which has less, asks b."""
    script = Script(*IDS)
    script.elect("a", "b")
    script.pass_on("a", "b")
    script.pass_on("a", "c")
    script.propose("a", b"\x00x")
    script.pass_on("a", "b")
    script.alone("a")
    script.stand("c")
    script.pass_on("c", "b")
    assert script.leaders == ["a"]


@counterexample(
    "no vote for a log that ends in an older term",
    without(VoteAnswer.REJECT_EXPIRED_LEDGER_TERM, VoteAnswer.REJECT_SMALL_LEDGER_END_INDEX),
    only_the_length_is_judged,
)
def test_a_long_log_of_an_older_term_asks_for_votes():
    """b led term 1 and wrote much that nobody took; term 2 committed less, and later."""
    script = Script(*IDS, logs={"b": entries(1, 1, 1, 1)}, terms=dict.fromkeys(IDS, 1))
    script.elect("a", "c")
    script.pass_on("a", "c")
    script.alone("a")
    for _ in range(2):  # term 2 is a's
        script.stand("b")
        script.pass_on("b", "c")
    assert script.leaders == ["a"]


@counterexample(
    "who hears a leader elects nobody else",
    without(VoteAnswer.REJECT_ALREADY_HAS_LEADER),
    Plant("contact-not-noted", CORE + "_serve", "self._election.last_contact = now", "pass"),
)
def test_one_that_cannot_hear_the_leader_does_not_depose_it():
    """Only the line from a to c is broken: without the rule c wins, a wins again, and so on for ever."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    script.cut = {("a", "c")}
    script.pass_time(6)
    assert script.leaders == ["a"]
    assert script["a"].hard.term == 1


@counterexample(
    "a trial before every election",
    Plant("no-trial", CORE + "tick", "trial=True", "trial=False"),
)
def test_a_member_that_was_cut_off_comes_back():
    """It has asked for votes all the time; with terms raised meanwhile it would end a lead that nobody doubts."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    script.alone("c")
    script.pass_time(10)
    script.together()
    script.pass_time(1)
    assert script.leaders == ["a"]
    assert script["a"].hard.term == 1


@counterexample(
    "a trial binds nobody",
    Plant("trial-takes-the-vote", CORE + "_vote", "VoteAnswer.ACCEPT and not asked.trial", "VoteAnswer.ACCEPT"),
)
def test_a_candidate_that_dies_after_its_trial_took_no_vote_with_it():
    """b and c let a try, and a dies; the next one is elected in the very term a asked about."""
    script = Script(*IDS)
    for each in ("b", "c"):
        assert script.ask(each, "a", VoteRequest(1, 1, 0, trial=True)).answer is VoteAnswer.ACCEPT
    script.alone("a")
    script.elect("b", "c")
    assert script["b"].hard.term == 1


@counterexample(
    "only voters are counted",
    Plant(
        "every-answer-counts",
        "remoting.protocol.voting:Tally.majority_of",
        "in answers for each in self.voters",
        "in answers for each in self.answers",
    ),
)
def test_a_stranger_votes():
    """A member that was removed meanwhile, or a learner, answers a candidate that lacks one vote."""
    script = Script(*IDS, learners=("d",))
    script.stand("a")
    script.take("a", "d", Voted(1, VoteAnswer.ACCEPT))
    assert script.leaders == []


@counterexample(
    "only voters stand",
    Plant("learners-stand", CORE + "tick", "self.admitted and self._may_lead", "self.admitted"),
)
def test_a_learner_is_the_first_that_misses_the_leader():
    """It has everything there is, and the voters would elect it; a group led by what decides nothing cannot heal."""
    script = Script(*IDS, learners=("d",))
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    script.alone("a")
    script.now += 3
    script["d"].tick(script.now)
    script.settle("d")
    for each in ("b", "c"):
        script.pass_on("d", each)
    assert script.leaders == ["a"]
    assert script["d"].hard.term == 1


@counterexample(
    "a leader that no majority answers steps down",
    Plant(
        "leads-on-alone",
        LEADING + "majority_present_since",
        "present + (self.own in voters) >= self._members.majority",
        "True",
    ),
)
def test_a_leader_is_cut_off_while_the_others_elect_another():
    """Its clients would wait for ever for what it cannot commit, instead of asking elsewhere."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    script["a"].read("r")
    script.alone("a")
    script.pass_time(5)
    assert len(script.leaders) == 1
    assert script.leaders != ["a"]
    assert script.reads == [("r", False)]


@counterexample(
    "two leaders of a term end the member that sees both",
    Plant("follows-either", CORE + "_serve", "self.leader not in (None, sender)", "False"),
)
def test_a_directory_was_put_back_and_two_lead():
    """c follows b in term 1 when a says that it leads term 1: some vote was given twice, and nobody may go on."""
    script = Script(*IDS)
    script.elect("b", "c")
    script.pass_on("b", "c")
    with pytest.raises(Contradiction):
        script["c"].step(script.now, "a", AppendEntries(1, 1, 1, 1, 0, entries(1)))


@counterexample(
    "a later term ends a lead",
    Plant("keeps-its-term", CORE + "step", "self._follow(now, message.term)", "pass"),
)
def test_the_answer_of_a_later_term_reaches_an_old_leader():
    """The others have elected b; a learns that from the first answer, and refuses its readers."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    script.alone("a")
    script.elect("b", "c")
    script.together()
    script["a"].read("r")
    script.settle("a")
    script.pass_on("a", "c")
    assert script.leaders == ["b"]
    assert script.reads == [("r", False)]
