"""Faults that DLedger shipped with, each by its number in that project, told with this core: it has none of them."""

from __future__ import annotations

import pytest

from controller.raft.core import Contradiction, HardState, RaftRole
from controller.raft.leading import SendPace
from controller.raft.messages import NO_OP, AppendAnswer, AppendEntries, StandNow, Voted, VoteRequest
from remoting.protocol.voting import VoteAnswer
from tests.unit.controller.raft.group import IDS, Group, elected, entries, snapshot_of


def test_fault_52_a_lagging_member_is_not_elected_because_its_term_is_high():
    """It said its current term where its last entry's belongs. The request carries the entry's."""
    group = Group(*IDS, logs={"a": entries(1), "b": entries(1, 2), "c": entries(1, 2)}, terms={"a": 9, "b": 2, "c": 2})
    group["a"].step(0.0, "b", StandNow(9))
    group.settle("a")
    assert group.waiting("a", "b") == [VoteRequest(10, 2, 1, forced=True)]
    group.deliver("a", "b")
    assert group.waiting("b", "a") == [Voted(2, VoteAnswer.REJECT_EXPIRED_LEDGER_TERM)]


@pytest.mark.parametrize("leader_has", [3, 4])
def test_faults_316_and_298_the_commit_position_is_never_behind_the_end_after_a_cut(leader_has):
    """A follower's longer tail went, its commit position stayed, and the next leader could commit nothing."""
    group = Group(*IDS, logs={"b": entries(1, 2, 2, 2)})
    new = entries(*[3] * (leader_has - 2), start=3)
    group.say("b", "a", AppendEntries(3, 1, 99, 2, 1, new))
    log = group["b"].log
    assert (log.last_index, log.committed) == (leader_has, leader_has)
    group.say("b", "a", AppendEntries(3, 2, 99, leader_has, 3, entries(3, start=leader_has + 1)))
    assert (log.last_index, log.committed) == (leader_has + 1, leader_has + 1)


def test_fault_305_entries_of_older_terms_are_committed_without_a_new_command():
    """They waited for the next command. The leader's first entry is a no-op of its own term."""
    group = Group(*IDS, logs={each: entries(1, 1) for each in IDS})
    group.pass_time(1.5)
    (leader,) = group.leaders
    log = group[leader].log
    assert log.entries(4, 5, 1) == [(NO_OP, 4, group[leader].hard.term)]
    assert {raft.log.committed for raft in group.members.values()} == {4}


def test_fault_4_a_tail_that_matches_is_kept_when_its_replacement_is_lost():
    """TRUNCATE came, APPEND did not, and acknowledged entries were gone. One request does both or neither."""
    group = elected()
    group.propose("a", b"\x001", b"\x002")
    group.pass_time(0.3)
    before = group["b"].log.last_index
    group["a"].connected(group.now, "b", connected=True)
    for _ in range(3):  # it compares from the beginning, and what would follow is lost
        group.settle("a")
        group.deliver("a", "b")
        group.links.clear()
    group["b"].step(group.now, "a", AppendEntries(1, 9, 2, 2, 1, []))
    assert group["b"].log.last_index == before


def test_fault_319_without_snapshots_a_member_is_served_from_the_log():
    """COMPARE said "install", which nobody could, and so on for ever. A log that begins in front needs no state."""
    group = elected()
    group.down.add("c")
    group.propose("a", *(b"\x00%d" % number for number in range(200)))
    group.pass_time(0.5)
    group.down.clear()
    group["a"].connected(group.now, "c", connected=True)
    paces = set()
    for _ in range(20):
        group.pass_time(0.05)
        paces.add(group["a"].leading.progress["c"].pace)
    assert SendPace.SNAPSHOT not in paces
    assert group.applied["c"] == group.applied["a"]


def test_fault_319_a_state_is_installed_once_and_then_entries_follow():
    """With snapshots it does not go back to the state it has just installed either."""
    group = elected()
    group.down.add("c")
    group.propose("a", b"\x001")
    group.pass_time(0.3)
    snapshot_of(group, "a")
    group.down.clear()
    group.installed = []
    group["a"].connected(group.now, "c", connected=True)
    group.pass_time(3)
    assert group.installed == ["c"]
    assert group["a"].leading.progress["c"].pace is SendPace.REPLICATE


def test_fault_268_behind_a_snapshot_the_log_begins_with_the_entry_it_ends_with():
    """The first index was wrong by one. What follows has the next index, and the entry in front answers comparisons."""
    group = elected()
    group.propose("a", b"\x001", b"\x002")
    group.pass_time(0.3)
    state = snapshot_of(group, "b")
    log = group["b"].log
    assert (log.first_index, log.term(state.index), log.term(state.index - 1)) == (4, 1, None)
    group.propose("a", b"\x003")
    group.pass_time(0.3)
    assert log.entries(5, 6, 1) == [(b"\x003", 5, 1)]
    (answer,) = group.say("b", "a", AppendEntries(1, 9, 5, 2, 1, []))
    assert answer.matched, "what is in the state is the leader's"


def test_fault_278_nothing_is_committed_that_was_not_compared():
    """A follower took the leader's commit position for entries of its own that nobody had compared."""
    group = Group(*IDS, logs={"b": entries(1, 1, 1)})
    group.say("b", "a", AppendEntries(2, 1, 4, 2, 1, []))
    assert group["b"].log.committed == 2
    with pytest.raises(Contradiction):
        group["b"].step(0.0, "a", AppendEntries(2, 2, 4, 1, 0, [(b"\x00other", 2, 2)]))


def test_fault_85_leadership_goes_to_no_member_that_is_behind():
    """The preferred leader was elected while it lacked entries. An heir stands once it has all of them, or never."""
    group = elected()
    group.cut.add(("a", "b"))
    group.propose("a", b"\x001")
    group.pass_time(0.3)
    group["a"].hand_over(group.now, "b")
    group.pass_time(0.3)
    assert group.leaders == ["a"]
    assert StandNow(1) not in group.waiting("a", "b")
    group["b"].step(group.now, "a", StandNow(1))  # even if it were asked
    group.settle("b")
    assert [each.answer for each in [group.ask("c", "b", group.waiting("b", "c")[-1])]] == [
        VoteAnswer.REJECT_SMALL_LEDGER_END_INDEX
    ]
    assert group["c"].hard == HardState(1, "a")


def test_fault_swallowed_write_errors_what_was_not_written_is_not_counted():
    """Term, vote and entries count when `advance` says that they are on the disk; until then nothing is applied.

    The files' side of it is `test_a_vote_that_cannot_be_written_is_not_sent`: the error ends the controller.
    """
    group = Group("a", learners=("b",))
    raft = group["a"]
    raft.tick(3.0)
    raft.propose(b"\x001")
    ready = raft.ready()
    assert ready.hard == HardState(1, "a")
    for _ in range(3):  # the write failed each time, so `advance` was not called
        again = raft.ready()
        assert (again.hard, again.committed) == (ready.hard, [])
        raft.step(3.0, "b", AppendAnswer(1, 1, matched=True, index=3))
    assert raft.log.committed == 1
    assert raft.role is RaftRole.LEADER
