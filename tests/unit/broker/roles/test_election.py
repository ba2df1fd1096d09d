"""The election among brokers, clause by clause: voters, candidates, leaders, and members that may not vote yet."""

from __future__ import annotations

from typing import Any

import pytest

from broker.replication.majority import majority_of
from broker.roles.election import (
    ElectionCall,
    ElectionPhase,
    ElectionTimers,
    Elector,
    GroupElection,
    OwnVote,
    VoterAdmission,
    VoteReply,
)
from broker.roles.steps import KnownGroup, ReplicaSteps
from remoting.protocol.bodies.election_body import Question, QuestionKind, Reply
from remoting.protocol.voting import VoteAnswer

NAMES = frozenset({"a", "b", "c"})
TIMERS = ElectionTimers(heartbeat_ms=100, silence_ms=1_000, interval_ms=150)
AT = (3, 500)
"""Where a log ends: epoch of the last byte, end."""


def member(own: str = "b", vote: OwnVote = OwnVote(), names: frozenset[str] = NAMES) -> Elector:  # noqa: B008
    """One that has just started, at time 0."""
    made = Elector(own, names, TIMERS, vote, lambda: 0.0)
    made.tick(0, may_stand=True)
    return made


def leader(own: str = "b") -> Elector:
    """The leader of term 1 since 150 ms."""
    made = member(own)
    made.tick(150, may_stand=True)
    (trial,) = made.outbox
    made.answered(150, "a", trial, VoteReply(1, VoteAnswer.ACCEPT))
    vote = made.outbox[-1]
    made.answered(150, "a", vote, VoteReply(1, VoteAnswer.ACCEPT))
    assert made.leads
    made.outbox.clear()
    return made


def test_a_trial_comes_first_and_raises_no_term() -> None:
    one = member()
    one.tick(149, may_stand=True)
    assert one.outbox == []
    one.tick(150, may_stand=True)
    assert one.outbox == [ElectionCall(1, trial=True)]
    assert (one.phase, one.vote) == (ElectionPhase.TRIAL, OwnVote())


def test_one_that_may_not_stand_asks_nobody() -> None:
    one = member()
    one.tick(5_000, may_stand=False)
    assert one.outbox == []


def test_a_majority_of_trials_begins_the_election_and_a_majority_of_votes_ends_it() -> None:
    one = member()
    one.tick(150, may_stand=True)
    one.answered(151, "a", ElectionCall(1, trial=True), VoteReply(1, VoteAnswer.ACCEPT))
    assert (one.vote, one.outbox[-1]) == (OwnVote(1, "b"), ElectionCall(1))
    one.answered(152, "c", ElectionCall(1), VoteReply(1, VoteAnswer.ACCEPT))
    assert (one.leads, one.leader, one.outbox[-1]) == (True, "b", ElectionCall(1, beat=True))


def test_late_answers_to_an_earlier_question_count_nothing() -> None:
    one = member()
    one.tick(150, may_stand=True)
    one.answered(151, "a", ElectionCall(1, trial=True), VoteReply(1, VoteAnswer.ACCEPT))
    one.answered(152, "c", ElectionCall(1, trial=True), VoteReply(1, VoteAnswer.ACCEPT))
    assert not one.leads


def test_the_vote_goes_to_one_candidate_a_term() -> None:
    one = member("c", OwnVote(4))
    first = one.asked(10, "a", ElectionCall(5), AT, AT)
    second = one.asked(11, "b", ElectionCall(5), AT, AT)
    again = one.asked(12, "a", ElectionCall(5), AT, AT)
    assert (first.answer, second.answer, again.answer) == (
        VoteAnswer.ACCEPT, VoteAnswer.REJECT_ALREADY_VOTED, VoteAnswer.ACCEPT,
    )  # fmt: skip
    assert one.vote == OwnVote(5, "a")


def test_a_vote_that_the_disk_had_binds_the_next_process() -> None:
    one = member("c", OwnVote(5, "a"))
    assert one.asked(10, "b", ElectionCall(5), AT, AT).answer is VoteAnswer.REJECT_ALREADY_VOTED
    assert one.asked(10, "a", ElectionCall(5), AT, AT).answer is VoteAnswer.ACCEPT


def test_a_log_that_is_behind_gets_no_vote_and_raises_no_term() -> None:
    one = member("c", OwnVote(4))
    earlier_epoch = one.asked(10, "a", ElectionCall(9), (2, 9_999), AT)
    shorter = one.asked(10, "a", ElectionCall(9), (3, 499), AT)
    assert (earlier_epoch.answer, shorter.answer) == (
        VoteAnswer.REJECT_EXPIRED_LEDGER_TERM, VoteAnswer.REJECT_SMALL_LEDGER_END_INDEX,
    )  # fmt: skip
    assert one.vote == OwnVote(4)


def test_a_trial_is_granted_without_a_trace() -> None:
    one = member("c", OwnVote(4, "b"))
    assert one.asked(10, "a", ElectionCall(5, trial=True), AT, AT) == VoteReply(5, VoteAnswer.ACCEPT)
    assert one.vote == OwnVote(4, "b")


def test_no_vote_while_a_leader_is_heard() -> None:
    one = member("c")
    assert one.beaten(100, "b", 2)
    assert one.asked(1_000, "a", ElectionCall(3), AT, AT).answer is VoteAnswer.REJECT_ALREADY_HAS_LEADER
    assert one.asked(1_101, "a", ElectionCall(3), AT, AT).answer is VoteAnswer.ACCEPT


def test_a_lost_connection_to_the_leader_shortens_the_silence_unless_it_is_heard_again() -> None:
    one = member("c")
    one.beaten(100, "b", 2)
    one.lost(200, "a")
    one.lost(200, "b")
    one.beaten(250, "b", 2)
    one.tick(400, may_stand=True)
    assert one.outbox == []
    one.lost(500, "b")
    one.tick(650, may_stand=True)
    assert one.outbox == [ElectionCall(3, trial=True)]


def test_a_leader_that_no_majority_answers_resigns_into_a_later_term() -> None:
    one = leader()
    one.tick(1_150, may_stand=True)
    assert one.leads
    one.tick(1_151, may_stand=True)
    assert (one.leads, one.leader, one.vote) == (False, "", OwnVote(2))


def test_an_answered_heartbeat_proves_the_time_at_which_it_was_sent() -> None:
    one = leader()
    one.tick(900, may_stand=True)
    one.beat_answered(1_100, "c", 1, 900, votes=True)
    assert one.proven_ms == 900
    one.tick(1_899, may_stand=True)
    assert one.leads
    one.tick(1_901, may_stand=True)
    assert not one.leads


def test_an_answer_of_a_member_that_does_not_vote_proves_nothing() -> None:
    one = leader()
    proven_ms = one.proven_ms
    one.beat_answered(1_100, "c", 1, 900, votes=False)
    assert one.proven_ms == proven_ms < 900


def test_a_leader_of_five_needs_two_others() -> None:
    one = member("a", names=frozenset("abcde"))
    one.tick(150, may_stand=True)
    one.answered(150, "b", ElectionCall(1, trial=True), VoteReply(1, VoteAnswer.ACCEPT))
    assert one.vote == OwnVote()
    one.answered(150, "c", ElectionCall(1, trial=True), VoteReply(1, VoteAnswer.ACCEPT))
    one.answered(150, "b", ElectionCall(1), VoteReply(1, VoteAnswer.ACCEPT))
    assert not one.leads
    one.answered(150, "d", ElectionCall(1), VoteReply(1, VoteAnswer.ACCEPT))
    assert one.leads
    one.beat_answered(800, "b", 1, 700, votes=True)
    assert one.proven_ms == 150


def test_a_later_term_ends_a_leadership_whoever_tells_it() -> None:
    for tell in (
        lambda one: one.beat_answered(300, "a", 7, 250, votes=True),
        lambda one: one.beat_answered(300, "a", 7, 250, votes=False),
        lambda one: one.beaten(300, "a", 7),
        lambda one: one.answered(300, "a", ElectionCall(1), VoteReply(7, VoteAnswer.REJECT_EXPIRED_VOTE_TERM)),
    ):
        one = leader()
        tell(one)
        assert (one.leads, one.vote) == (False, OwnVote(7))


def test_heartbeats_of_earlier_terms_and_of_a_second_leader_are_refused() -> None:
    one = member("c")
    assert one.beaten(10, "b", 2)
    assert not one.beaten(11, "a", 1)
    assert not one.beaten(12, "a", 2)
    assert (one.leader, one.vote.term) == ("b", 2)


def test_a_candidate_that_most_are_ahead_of_waits_for_them() -> None:
    one = member()
    one.tick(150, may_stand=True)
    for peer in ("a", "c"):
        one.answered(151, peer, ElectionCall(1, trial=True), VoteReply(0, VoteAnswer.REJECT_EXPIRED_LEDGER_TERM))
    assert one.phase is ElectionPhase.FOLLOWER
    one.outbox.clear()
    one.tick(450, may_stand=True)
    assert one.outbox == []
    one.tick(451, may_stand=True)
    assert one.outbox == [ElectionCall(1, trial=True)]


def test_majorities() -> None:
    assert [majority_of(count) for count in (2, 3, 4, 5)] == [2, 2, 3, 3]


def admission() -> VoterAdmission:
    return VoterAdmission("b", NAMES, admitted=False)


def test_a_group_is_new_once_all_others_are_known_and_nobody_has_a_log() -> None:
    one = admission()
    assert not one.founds(OwnVote(), (0, 0))
    one.reported("stranger", 0, (0, 0), votes=False)
    assert not one.founds(OwnVote(), (0, 0))
    one.reported("a", 0, (0, 0), votes=False)
    assert not one.founds(OwnVote(), (0, 0)), "c may have what a and this one have lost"
    one.reported("c", 0, (0, 0), votes=True)
    assert one.founds(OwnVote(), (0, 0))
    assert not one.founds(OwnVote(1), (0, 0))
    assert not one.founds(OwnVote(), (1, 8))
    one.reported("c", 0, (1, 8), votes=True)
    assert not one.founds(OwnVote(), (0, 0))


def test_an_empty_member_of_an_old_group_votes_once_it_has_the_log_of_a_leader_that_nobody_is_ahead_of() -> None:
    one = admission()
    one.reported("a", 4, (4, 100), votes=True)
    assert not one.catches_up(4, 100, 100), "the vote it forgot may have been for c"
    one.reported("c", 5, (4, 100), votes=True)
    assert not one.catches_up(4, 100, 100), "c may lead in term 5 by that vote"
    assert not one.catches_up(5, 120, 110)
    assert not one.catches_up(5, 500, 119), "the goal is what the leader had when it was heard first"
    assert one.catches_up(5, 500, 120)


def test_members_that_may_not_vote_either_prove_nothing() -> None:
    one = admission()
    one.reported("a", 4, (4, 100), votes=True)
    one.reported("c", 0, (0, 0), votes=False)
    assert not one.catches_up(4, 100, 100)


def test_a_member_that_lost_something_begins_again() -> None:
    one = VoterAdmission("b", NAMES, admitted=True)
    one.forget()
    assert not one.admitted
    assert not one.catches_up(4, 0, 0)


def test_who_is_summoned_stands_at_once_and_gets_votes_although_there_is_a_leader() -> None:
    """Only by the leader of its term; a voter judges the log of the candidate as ever, and the leader votes too."""
    follower, former = member("a"), leader("b")
    follower.beaten(200, "b", 1)
    follower.summoned(210, "c", 1)
    follower.summoned(210, "b", 0)
    assert follower.outbox == []
    follower.summoned(210, "b", 1)
    assert follower.outbox == [ElectionCall(2, forced=True)]
    assert (follower.phase, follower.vote) == (ElectionPhase.CANDIDATE, OwnVote(2, "a"))
    plain = former.asked(210, "a", ElectionCall(2), AT, AT)
    assert plain.answer is VoteAnswer.REJECT_ALREADY_HAS_LEADER
    behind = former.asked(210, "a", follower.outbox[0], (3, 499), AT)
    assert behind.answer is VoteAnswer.REJECT_SMALL_LEDGER_END_INDEX
    assert former.leads
    granted = former.asked(210, "a", follower.outbox[0], AT, AT)
    assert (granted.answer, former.leads, former.vote) == (VoteAnswer.ACCEPT, False, OwnVote(2, "a"))
    follower.answered(215, "b", follower.outbox[0], granted)
    assert follower.leads


def test_no_trial_is_forced_and_no_leader_is_summoned() -> None:
    voter = member("a")
    voter.beaten(200, "b", 1)
    asked = voter.asked(210, "c", ElectionCall(2, trial=True, forced=True), AT, AT)
    assert asked.answer is VoteAnswer.REJECT_ALREADY_HAS_LEADER
    one = leader("b")
    one.summoned(210, "b", 1)
    assert one.leads


class Bench:
    """Member b of three, which votes and has a log; what its election does to the world is noted, in order."""

    def __init__(self, elector: Elector | None = None, *, admitted: bool = True, end: int = 400) -> None:
        self.notes: list[tuple[Any, ...]] = []
        self.saved_vote = OwnVote()
        self.end, self.kept, self.is_damaged = end, -1, False
        self.elector = elector or member()
        self.admission = VoterAdmission("b", NAMES, admitted=admitted)
        self.steps = ReplicaSteps(2, is_applied=True, epoch=0, is_learner=False, poll_interval_ms=0)
        self.election = GroupElection(self.elector, self.admission, self.steps, self, self, {"a": 1, "b": 2, "c": 3})

    def did(self) -> list[tuple[Any, ...]]:
        """What was done since the last look."""
        notes, self.notes = self.notes, []
        return notes

    def place(self) -> tuple[int, int]:
        return (3 if self.end else 0), self.end

    def copied(self, _epoch: int) -> int:
        return self.kept

    def is_sound(self) -> bool:
        return not self.is_damaged

    def addresses(self) -> tuple[str, str]:
        return "b:1", "b:2"

    def fence(self, epoch: int) -> None:
        self.notes.append(("fence", epoch))

    def count_copies(self, *, counted: bool) -> None:
        self.notes.append(("count", counted))

    def save_vote(self, vote: OwnVote) -> None:
        self.saved_vote = vote
        self.notes.append(("save", vote))

    def save_admitted(self, *, admitted: bool, reason: str) -> None:
        assert reason
        self.notes.append(("admitted", admitted))

    def ask(self, kind: QuestionKind, call: ElectionCall, *, only: str = "") -> None:
        self.notes.append(("ask", kind, call.term, only))

    def proved(self, term: int, proven_ms: int) -> None:
        self.notes.append(("proved", term, proven_ms))

    def report(self, view: KnownGroup) -> None:
        self.notes.append(("report", view.epoch, view.master, view.address))
        self.steps.update(view)

    def taken(self) -> None:
        self.notes.append(("taken",))

    def drop(self) -> None:
        self.notes.append(("drop",))

    def hear(self, kind: QuestionKind, term: int, *, sender: str = "a", end: int = 500, now_ms: int = 10) -> Reply:
        """A question of another member."""
        place = (3, end) if end else (0, 0)
        question = Question(
            cluster="c", group="g", members="", sender=sender, kind=kind, term=term, place=place, asked_ms=7,
            address=f"{sender}:1", ha_address=f"{sender}:2",
        )  # fmt: skip
        return self.election.asked(now_ms, question)


def test_a_vote_ends_the_stream_first_and_is_on_the_disk_before_all_that_shows_it() -> None:
    bench = Bench()
    reply = bench.hear(QuestionKind.VOTE, 5)
    assert (reply.term, reply.answer, reply.place, reply.asked_ms, reply.votes) == (
        5, VoteAnswer.ACCEPT, (3, 400), 7, True,
    )  # fmt: skip
    assert bench.did() == [("fence", 5), ("save", OwnVote(5, "a")), ("report", 5, None, "")]
    bench.hear(QuestionKind.BEAT, 5)
    assert bench.did() == [("taken",), ("report", 5, 1, "a:1")]
    assert bench.hear(QuestionKind.SUMMON, 5).term == 6
    assert bench.did() == [("fence", 6), ("save", OwnVote(6, "b")), ("ask", QuestionKind.VOTE, 6, "")]


def test_a_candidate_saves_its_vote_before_it_asks_and_tells_where_it_leads() -> None:
    bench = Bench()
    bench.election.tick(150)
    assert bench.did() == [("ask", QuestionKind.VOTE, 1, "")], "a trial"
    granted = Reply(term=1, place=(3, 400), asked_ms=150)
    bench.election.answered(150, "a", QuestionKind.VOTE, ElectionCall(1, trial=True), granted)
    assert bench.did() == [("fence", 1), ("save", OwnVote(1, "b")), ("ask", QuestionKind.VOTE, 1, "")]
    bench.election.answered(150, "a", QuestionKind.VOTE, ElectionCall(1), granted)
    assert bench.did() == [("report", 1, 2, "b:1"), ("ask", QuestionKind.BEAT, 1, "")]
    bench.election.answered(170, "a", QuestionKind.BEAT, ElectionCall(1, beat=True), granted)
    assert bench.did() == [("proved", 1, 150), ("report", 1, 2, "b:1")]
    bench.election.summon("")
    bench.election.summon("c")
    assert bench.did() == [("ask", QuestionKind.SUMMON, 1, "c")]


@pytest.mark.parametrize("kind", [QuestionKind.VOTE, QuestionKind.SUMMON])
def test_a_member_that_is_not_admitted_votes_for_nobody_and_stands_for_nothing(kind: QuestionKind) -> None:
    bench = Bench(admitted=False)
    reply = bench.hear(kind, 5)
    assert (reply.term, reply.votes) == (0, False)
    bench.election.tick(5_000)
    assert bench.did() == [("ask", QuestionKind.JOIN, 0, "")]
    bench.hear(QuestionKind.JOIN, 0, end=0)
    bench.hear(QuestionKind.JOIN, 0, sender="c", end=0)
    bench.election.tick(5_100)
    assert bench.did() == [], "its log is not empty: the group is not new"


def test_a_new_group_is_founded_by_those_that_have_heard_of_all() -> None:
    bench = Bench(admitted=False, end=0)
    bench.hear(QuestionKind.JOIN, 0, end=0)
    bench.election.tick(100)
    assert bench.did() == [("ask", QuestionKind.JOIN, 0, "")]
    bench.hear(QuestionKind.JOIN, 0, sender="c", end=0)
    bench.election.tick(120)
    assert bench.did() == [("admitted", True), ("count", True)]


def test_who_was_emptied_votes_when_it_has_copied_what_the_leader_had() -> None:
    bench = Bench(admitted=False, end=0)
    for sender in ("c", "a"):
        bench.hear(QuestionKind.BEAT, 5, sender=sender)
    assert ("admitted", True) not in bench.did(), "nothing is copied yet"
    bench.kept = 499
    bench.hear(QuestionKind.BEAT, 5, sender="c")
    assert ("admitted", True) not in bench.did()
    bench.kept = 500
    assert bench.hear(QuestionKind.BEAT, 5, sender="c").votes
    assert bench.did()[:2] == [("admitted", True), ("count", True)]


def test_a_leader_that_finds_damage_resigns_and_does_not_stand_again() -> None:
    bench = Bench(leader())
    bench.election.settle()
    bench.did()
    bench.election.lost_something(300)
    assert bench.did() == [("admitted", False), ("count", False), ("drop",)]
    assert (bench.elector.leads, bench.admission.admitted, bench.steps.is_registered) == (False, False, True)
    bench.election.settle()
    assert bench.did() == [("fence", 2), ("save", OwnVote(2)), ("report", 2, None, "")]


def test_a_member_with_a_damaged_log_votes_and_stands_for_nothing() -> None:
    bench = Bench()
    bench.is_damaged = True
    bench.election.tick(5_000)
    assert bench.did() == []
    bench.hear(QuestionKind.BEAT, 5)
    assert bench.hear(QuestionKind.SUMMON, 5).term == 5
    assert bench.hear(QuestionKind.VOTE, 6, sender="c", now_ms=5_000).answer is VoteAnswer.ACCEPT
