"""The core alone, moved message by message: Raft's rules, and faults that systems of this kind shipped with."""

from __future__ import annotations

import pytest

from controller.raft import leading
from controller.raft.core import Contradiction, HardState, RaftRole
from controller.raft.leading import StateSnapshot
from controller.raft.membership import Membership
from controller.raft.messages import AppendAnswer, AppendEntries, InstallState, StandNow, Voted, VoteRequest
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.voting import VoteAnswer
from tests.unit.controller.raft.group import IDS, Group, elected, entries, snapshot_of

# ---- election


def test_one_is_elected_and_begins_with_a_no_op():
    """All follow it in one term, and the no-op is committed everywhere."""
    group = elected()
    assert {raft.leader for raft in group.members.values()} == {"a"}
    assert {raft.hard.term for raft in group.members.values()} == {1}
    assert {raft.log.committed for raft in group.members.values()} == {2}


def test_a_member_that_is_cut_off_raises_no_term():
    """A trial comes first, and wins nothing without the others; it comes back as a follower of the same leader."""
    group = elected()
    group.down.add("c")
    group.pass_time(10)
    assert group["c"].hard.term == 1
    group.down.clear()
    group.pass_time(2)
    assert (group.leaders, group["c"].hard.term) == (["a"], 1)


def test_a_leader_without_a_majority_steps_down():
    """Check-quorum: nobody answers it for the fallback time."""
    group = elected()
    group.down |= {"b", "c"}
    group.pass_time(2.5)
    assert group.leaders == []


def test_a_log_that_is_behind_is_not_elected_and_raises_no_term():
    """Its log is judged before its term: it stood long ago, and the others' terms stay."""
    group = Group(*IDS, logs={"b": entries(1, 1), "c": entries(1, 1)}, terms={"a": 7, "b": 1, "c": 1})
    group["b"].step(0.1, "a", VoteRequest(8, 1, 0))
    group.settle("b")
    assert group.waiting("b", "a") == [Voted(1, VoteAnswer.REJECT_EXPIRED_LEDGER_TERM)]
    group.pass_time(6)
    assert group.leaders in (["b"], ["c"])
    assert group["a"].log.last_index >= 4


def test_the_last_entrys_term_counts_not_the_current_term():
    """A member that lags but has seen a high term is no better than its entries."""
    group = Group(*IDS, logs={"a": entries(1), "b": entries(2), "c": entries(2)}, terms={"a": 9, "b": 2, "c": 2})
    group.pass_time(8)
    assert group.leaders != ["a"]
    assert group["a"].log.term(2) == 2


def test_one_vote_a_term_and_it_is_on_disk_before_it_is_sent():
    """The second candidate of a term is refused, and the vote is in the same Ready as its message."""
    group = Group(*IDS)
    raft = group["c"]
    raft.step(0.1, "a", VoteRequest(1, 1, 0))
    ready = raft.ready()
    assert ready.hard == HardState(1, "a")
    assert ready.messages == [("a", Voted(1, VoteAnswer.ACCEPT))]
    assert ready.early == []
    raft.advance(ready)
    raft.step(0.2, "b", VoteRequest(1, 1, 0))
    assert raft.ready().messages == [("b", Voted(1, VoteAnswer.REJECT_ALREADY_VOTED))]


def test_who_hears_a_leader_gives_no_vote_unless_the_leader_asked_for_it():
    """And the candidate's term raises nothing."""
    group = elected()
    for trial in (True, False):
        group["b"].step(group.now, "c", VoteRequest(2, 2, 1, trial))
        group.settle("b")
        assert group.waiting("b", "c")[-1] == Voted(1, VoteAnswer.REJECT_ALREADY_HAS_LEADER, trial)
    group["b"].step(group.now, "c", VoteRequest(2, 2, 1, forced=True))
    assert group["b"].hard == HardState(2, "c")


def test_leadership_is_handed_over_to_one_that_has_everything():
    """New commands are refused meanwhile; if the heir does not stand, the leader goes on."""
    group = elected()
    group.propose("a", b"\x00x")
    group["a"].hand_over(group.now, "b")
    assert group["a"].propose(b"\x00y") is None
    group.pass_time(0.3)
    assert group.leaders == ["b"]
    group.down.add("c")
    group["b"].hand_over(group.now, "c")
    group.pass_time(1.2)
    assert group.leaders == ["b"]
    assert group["b"].propose(b"\x00z") is not None
    with pytest.raises(LocalMisuse, match="another voter"):
        group["a"].hand_over(group.now, "b")


def test_a_member_that_may_not_vote_does_not_stand_when_asked():
    group = elected()
    group["b"].admitted = False
    group["b"].step(group.now, "a", StandNow(1))
    assert group["b"].role is RaftRole.FOLLOWER


# ---- the log


def test_commands_are_committed_by_a_majority_and_applied_in_order():
    group = elected()
    group.down.add("c")
    group.propose("a", b"\x001", b"\x002", b"\x003")
    group.pass_time(0.3)
    assert group.applied["a"] == group.applied["b"] == [b"\x001", b"\x002", b"\x003"]
    assert group.applied["c"] == []
    group.down.clear()
    group.pass_time(0.5)
    assert group.applied["c"] == group.applied["a"]


def test_an_entry_of_an_older_term_is_committed_only_by_one_of_its_own():
    """Raft's figure 8: the majority that has it may still be overruled."""
    group = Group(*IDS, logs={"a": entries(1, 1), "b": entries(1, 1)}, terms=dict.fromkeys(IDS, 1))
    group["a"].step(0.0, "b", StandNow(1))
    group.settle("a")
    group.deliver("a", "b")
    group.deliver("b", "a")
    assert group.leaders == ["a"]
    assert group["a"].log.committed == 1
    answer = AppendAnswer(2, 1, matched=True, index=3)
    group["a"].step(0.0, "b", answer)
    group.settle("a")
    assert group["a"].log.committed == 1, "entries of term 1 are on two disks, and nothing of term 2"
    group.pass_time(0.3)
    assert group["a"].log.committed == 4


def test_old_entries_are_committed_without_a_new_command():
    """The no-op does it; a system without one waited for the next command."""
    group = Group(*IDS, logs={each: entries(1, 1) for each in IDS})
    group.pass_time(1.5)
    assert {raft.log.committed for raft in group.members.values()} == {4}


def test_an_answer_to_the_same_members_former_leadership_is_harmless():
    """It lost a lead, leads again, and gets the answer to a message of the first: of this term, and about no entry."""
    group = elected()
    late = group["a"].hard.term
    group["a"].step(group.now, "b", Voted(late + 1, VoteAnswer.REJECT_EXPIRED_VOTE_TERM))
    group.pass_time(3)
    (leader,) = group.leaders
    (other, *_) = set(IDS) - {leader}
    group.links.clear()
    group[other].step(group.now, leader, AppendEntries(late, 7, 2, 2, late, []))
    group.settle(other)
    answer = group.waiting(other, leader)[-1]
    assert (answer.term, answer.matched) == (group[leader].hard.term, False)
    group[leader].step(group.now, other, answer)
    group.settle(leader)
    group.propose(leader, b"\x00x")
    group.pass_time(2)
    assert group.applied[other] == [b"\x00x"]


def test_only_what_contradicts_is_cut_and_in_the_same_request():
    """A follower that has more of the leader's log keeps it when an earlier message comes again."""
    group = elected()
    group.propose("a", b"\x001", b"\x002")
    group.pass_time(0.3)
    follower = group["b"]
    before = follower.log.entries(1, 9, 1 << 30)
    follower.step(group.now, "a", AppendEntries(1, 5, 2, 2, 1, entries(1, start=3)[:0]))
    follower.step(group.now, "a", AppendEntries(1, 5, 2, 1, 0, before[1:2]))
    assert follower.log.entries(1, 9, 1 << 30) == before
    assert follower.ready().cut_from == 0


def test_a_conflict_jumps_over_whole_terms():
    """The leader finds where they agree in a few steps, not one an entry."""
    long = entries(*([1] * 10 + [2] * 50))
    short = entries(*([1] * 10 + [3] * 5))
    group = Group(*IDS, logs={"a": long, "b": short, "c": short}, terms=dict.fromkeys(IDS, 3))
    group.down.add("a")
    group.pass_time(3)
    (leader,) = group.leaders
    group.down.clear()
    group[leader].connected(group.now, "a", connected=True)
    asked = 0
    for _ in range(20):
        group.settle(leader)
        asked += len(group.waiting(leader, "a"))
        group.deliver(leader, "a")
        group.deliver("a", leader)
    assert asked <= 8
    assert group["a"].log.place == group[leader].log.place


def test_the_commit_position_never_passes_what_was_proven():
    """A heartbeat says how far the leader is; what the follower has behind the proven entry may be another log's."""
    group = Group(*IDS, logs={"b": entries(1, 1, 1)})
    follower = group["b"]
    follower.step(0.0, "a", AppendEntries(2, 1, 4, 2, 1, []))
    assert follower.log.committed == 2


def test_a_leader_that_contradicts_what_is_committed_stops_the_member():
    """Some disk lost what it had promised: going on would make two histories."""
    group = elected()
    group.propose("a", b"\x001")
    group.pass_time(0.3)
    with pytest.raises(Contradiction, match="contradicts entry 3"):
        group["b"].step(group.now, "c", AppendEntries(5, 1, 3, 2, 1, [(b"\x00other", 3, 4)]))


def test_what_is_not_on_the_leaders_own_disk_does_not_count():
    """And nothing is applied before it is."""
    group = elected()
    raft = group["a"]
    raft.propose(b"\x001")
    ready = raft.ready()
    assert [type(message) for _, message in ready.early] == [AppendEntries, AppendEntries]
    raft.step(group.now, "b", AppendAnswer(1, 1, matched=True, index=3))
    second = raft.ready()
    assert raft.log.committed == 2
    assert second.committed == []
    raft.advance(ready)
    assert [index for _, index, _ in raft.ready().committed] == [3]


def test_a_term_that_is_not_on_disk_is_not_shown():
    """A group of one voter leads at once; its learner gets nothing before the vote is written."""
    group = Group("a", learners=("b",))
    group["a"].tick(3.0)
    ready = group["a"].ready()
    assert ready.hard == HardState(1, "a")
    assert ready.early == []
    assert [peer for peer, _ in ready.messages] == ["b"]


# ---- reads


def test_a_read_waits_for_a_round_that_began_after_it():
    """Answers to earlier heartbeats prove nothing; a leader that lost the lead refuses."""
    group = elected()
    late = group.waiting("a", "b")
    assert late == []
    group["a"].read("r")
    group.settle("a")
    assert group.reads == []
    group["a"].step(group.now, "b", AppendAnswer(1, 1, matched=True, index=2))
    group.settle("a")
    assert group.reads == []
    group.deliver()
    group.deliver()
    assert group.reads == [("r", True)]
    group["a"].read("s")
    group["a"].step(group.now, "b", AppendAnswer(9, 0, matched=False, index=1))
    group.settle("a")
    assert group.reads[-1] == ("s", False)
    assert not group["a"].read("t")


def test_a_new_leader_does_not_answer_before_its_no_op_is_committed():
    """It does not know yet what was."""
    group = Group(*IDS)
    group["a"].step(0.0, "b", StandNow(0))
    group.settle("a")
    group.deliver("a", "b")
    group.deliver("b", "a")
    assert group.leaders == ["a"]
    group["a"].read("r")
    group["a"].step(0.0, "b", AppendAnswer(1, 50, matched=True, index=1))
    group.settle("a")
    assert group.reads == []
    group.pass_time(0.3)
    assert group.reads == [("r", True)]


def test_what_may_not_vote_confirms_no_read():
    """It may have voted for another leader before it lost its files."""
    group = elected()
    group.down.add("c")
    group["b"].admitted = False
    group["a"].read("r")
    group.settle("a")
    group.pass_time(0.4)
    assert group.reads == []


# ---- snapshots


def test_a_member_far_behind_gets_the_state_in_pieces(monkeypatch):
    """A piece at a time, again when one is lost, and entries from there on."""
    monkeypatch.setattr(leading, "PIECE_BYTES", 4)
    group = elected()
    group.down.add("c")
    group.propose("a", b"\x001", b"\x002")
    group.pass_time(0.3)
    snapshot = snapshot_of(group, "a")
    group.down.clear()
    group["a"].connected(group.now, "c", connected=True)
    data = None
    for turn in range(40):
        group.now += 0.05
        group["a"].tick(group.now)
        group.settle("a")
        if turn == 3:
            group.links[("a", "c")].clear()
        group.deliver()
        data = data or group["c"].arrived()
        if data:
            break
    assert data == snapshot.data
    group["c"].install(snapshot)
    ready = group["c"].ready()
    assert ready.snapshot is snapshot
    group["c"].advance(ready)
    group.propose("a", b"\x003")
    group.pass_time(1)
    assert group.applied["c"][-1] == b"\x003"
    assert group["c"].log.committed == group["a"].log.committed


def test_an_older_state_changes_nothing():
    group = elected()
    group.propose("a", b"\x001")
    group.pass_time(0.3)
    group["b"].step(group.now, "a", InstallState(1, 7, 2, 0, b"old", 3))
    assert group["b"].arrived() is None
    group.settle("b")
    assert group.waiting("b", "a")[-1] == AppendAnswer(1, 7, matched=True, index=3)


def test_a_state_keeps_the_entries_behind_it():
    """They may have been acknowledged."""
    group = Group(*IDS, logs={"b": entries(1, 1, 1)})
    raft = group["b"]
    raft.install(StateSnapshot((b"\x003", 3, 1), Membership(IDS), b"x"))
    assert (raft.log.first_index, raft.log.last_index, raft.log.committed) == (3, 4, 3)
    raft.install(StateSnapshot((b"\x009", 9, 2), Membership(IDS), b"y"))
    assert (raft.log.first_index, raft.log.last_index, raft.applied) == (9, 9, 9)


# ---- members


def test_members_change_one_voter_at_a_time_through_learners():
    """A learner gets everything and decides nothing; it votes when it has caught up, and one can leave."""
    group = elected(learners=("d",))
    raft = group["a"]
    group.down |= {"b", "c"}
    group.propose("a", b"\x001")
    group.pass_time(0.3)
    assert group["d"].log.last_index == 3
    assert raft.log.committed == 2
    with pytest.raises(LocalMisuse, match="a learner first"):
        raft.change(group.now, Membership(("a", "b", "c", "e"), ("d",)))
    with pytest.raises(LocalMisuse, match="one at a time"):
        raft.change(group.now, Membership(("a",)))
    group.down.clear()
    group.pass_time(0.5)
    raft.change(group.now, Membership(("a", "b", "c", "d")))
    with pytest.raises(LocalMisuse, match="not committed yet"):
        raft.change(group.now, Membership(("a", "b", "c", "d"), ("e",)))
    group.settle("a")
    group.pass_time(0.5)
    assert all(each.members.current == Membership(("a", "b", "c", "d")) for each in group.members.values())
    raft.change(group.now, Membership(("b", "c", "d")))
    group.settle("a")
    group.pass_time(4)
    assert group["a"].role is RaftRole.FOLLOWER
    assert group.leaders != []
    assert group["a"].hard.term < group[group.leaders[0]].hard.term


def test_a_change_that_is_cut_does_not_count():
    """The members before it are back with the entry that named them gone."""
    group = elected(learners=("d",))
    group.down |= {"b", "c"}
    group["a"].change(group.now, Membership(("a", "b", "c", "d")))
    group.down = {"a"}
    group.pass_time(3)
    (leader,) = group.leaders
    group.down = set()
    group.links.clear()
    group.pass_time(2)
    assert group["a"].members.current == Membership(IDS, ("d",))
    assert group["a"].log.place == group[leader].log.place


def test_a_learner_that_is_behind_is_not_made_a_voter():
    group = elected(learners=("d",))
    group.down.add("d")
    group.propose("a", b"\x001")
    group.pass_time(0.3)
    with pytest.raises(LocalMisuse, match="stays a learner"):
        group["a"].change(group.now, Membership(("a", "b", "c", "d")))


def test_a_learner_never_stands():
    group = Group("a", learners=("b",))
    group.down.add("a")
    group.pass_time(9)
    assert group["b"].role is RaftRole.FOLLOWER
    assert group["b"].hard.term == 0
