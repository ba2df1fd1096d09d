"""How the log comes to the others (COMPARE, TRUNCATE, APPEND, COMMIT, INSTALL_SNAPSHOT), and what always holds."""

from __future__ import annotations

import pytest

from controller.raft import leading
from controller.raft.core import Contradiction, RaftRole
from controller.raft.leading import IN_FLIGHT_MAX, PATIENCE_BEATS, SendPace, StateSnapshot
from controller.raft.membership import Membership
from controller.raft.messages import (
    CONFIGURATION,
    AppendAnswer,
    AppendEntries,
    InstallState,
    StandNow,
    Voted,
    VoteRequest,
)
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.voting import VoteAnswer
from tests.unit.controller.raft.group import IDS, Group, elected, entries, snapshot_of


def taken(group, node_id):
    """All entries of a member's log."""
    log = group[node_id].log
    return log.entries(log.first_index, log.last_index + 1, 1 << 62)


# ---- push


def test_compare_a_mismatch_names_the_first_entry_of_the_term_that_contradicts():
    """(xTerm, xIndex): the leader jumps over the whole term."""
    group = Group(*IDS, logs={"b": entries(1, 2, 2, 2)})
    (answer,) = group.say("b", "a", AppendEntries(5, 1, 1, 5, 4, []))
    assert answer == AppendAnswer(5, 1, matched=False, index=3, hint_term=2, refused=5)
    assert len(taken(group, "b")) == 5, "comparing cuts nothing"


def test_compare_a_log_that_is_too_short_names_its_end():
    """And the leader goes on there, not one entry back."""
    group = Group(*IDS, logs={"b": entries(1)})
    (answer,) = group.say("b", "a", AppendEntries(5, 1, 1, 500, 4, []))
    assert answer == AppendAnswer(5, 1, matched=False, index=3, refused=500)


def test_truncate_and_append_are_one_request():
    """There is no moment in which the tail is gone and what replaces it has not come."""
    group = Group(*IDS, logs={"b": entries(1, 2, 2)})
    new = entries(3, 3, start=3)
    group["b"].step(0.0, "a", AppendEntries(5, 1, 1, 2, 1, new))
    ready = group["b"].ready()
    assert (ready.cut_from, ready.entries) == (3, new)


def test_append_out_of_order_is_refused_and_sent_again():
    """DLedger parks up to 1,000 requests. Connections keep the order here, so a gap is a loss: the leader goes back."""
    group = elected()
    group.cut.add(("a", "b"))
    group.propose("a", b"\x001")
    group.deliver("a", "b")
    group.cut.clear()
    group.propose("a", b"\x002")
    group.deliver("a", "b")
    assert group["b"].log.last_index == 2
    group.pass_time(0.2)
    assert group.applied["b"] == [b"\x001", b"\x002"]


def test_append_a_member_that_does_not_answer_holds_a_bounded_number_of_messages(monkeypatch):
    """Entries wait in the leader's log, not in its output."""
    monkeypatch.setattr(leading, "BATCH_BYTES", 1)
    group = elected()
    group.propose("a", *(b"\x00%d" % number for number in range(3 * IN_FLIGHT_MAX)))
    assert len(group.waiting("a", "b")) == IN_FLIGHT_MAX
    group.pass_time(1.0)
    assert len(group.applied["b"]) == 3 * IN_FLIGHT_MAX


def test_append_what_is_not_answered_is_asked_for_again():
    """After some heartbeats, so that an answer that was lost holds nothing up."""
    group = elected()
    group.cut.add(("b", "a"))
    group["a"].connected(group.now, "b", connected=True)
    group.propose("a", b"\x001")
    group.pass_time(0.3)
    assert group["a"].leading.progress["b"].pace is SendPace.PROBE
    group.cut.clear()
    group.pass_time((PATIENCE_BEATS + 3) * 0.1)
    assert group["a"].leading.progress["b"].pace is SendPace.REPLICATE
    assert group["a"].leading.progress["b"].match == group["a"].log.last_index


def test_install_snapshot_goes_over_to_entries_when_the_state_is_there():
    """The member's next entry is the one behind the state."""
    group = elected()
    group.down.add("c")
    group.propose("a", b"\x001", b"\x002")
    group.pass_time(0.3)
    state = snapshot_of(group, "a")
    group.down.clear()
    group.installed = []
    progress = group["a"].leading.progress["c"]
    group["a"].connected(group.now, "c", connected=True)
    group.pass_time(2)
    assert group.installed == ["c"]
    assert (progress.snapshot, progress.pace) == (state.index, SendPace.REPLICATE)
    assert group["c"].log.last_index == group["a"].log.last_index


def test_commit_is_the_median_of_what_the_voters_have_on_disk():
    """Of five the third; in a group of four three are needed."""
    for ids, sizes, expected in ((("a", "b", "c", "d", "e"), (5, 4, 3, 2), 4), (("a", "b", "c", "d"), (5, 4, 3), 4)):
        group = Group(*ids)
        group.pass_time(1.3)
        assert group.leaders == ["a"]
        group.propose("a", *(b"\x00%d" % number for number in range(3)))
        for each, index in zip(ids[1:], sizes, strict=True):
            group["a"].step(group.now, each, AppendAnswer(1, 1, matched=True, index=index))
        group.settle("a")
        assert group["a"].log.committed == expected


# ---- what always holds


def test_invariant_one_leader_a_term():
    """Two candidates of one term share no majority, because each voter's first vote stays."""
    group = Group(*IDS)
    group.ask("c", "a", VoteRequest(1, 1, 0))
    assert group.ask("c", "b", VoteRequest(1, 1, 0)).answer is VoteAnswer.REJECT_ALREADY_VOTED


def test_invariant_a_vote_is_written_once_a_term():
    """Following a leader, learning the same term again and standing do not free it."""
    group = Group(*IDS)
    group.ask("c", "a", VoteRequest(1, 1, 0))
    group.say("c", "b", AppendEntries(1, 1, 1, 1, 0, []))
    group.say("c", "b", AppendAnswer(1, 1, matched=True, index=1))
    assert group["c"].hard.voted_for == "a"


def test_invariant_a_leader_only_appends():
    """What its term's own requests would change in a follower's log changes nothing in its own."""
    group = elected()
    group.propose("a", b"\x001")
    before = taken(group, "a")
    with pytest.raises(Contradiction):
        group["a"].step(group.now, "b", AppendEntries(1, 1, 1, 1, 0, entries(1, 1)))
    assert taken(group, "a") == before


def test_invariant_log_matching_equal_index_and_term_are_equal_logs():
    """Three logs with different tails become the leader's."""
    group = Group(
        *IDS, logs={"a": entries(1, 3), "b": entries(1, 2, 2, 2), "c": entries(1)}, terms=dict.fromkeys(IDS, 3)
    )
    group.pass_time(3)
    assert group.leaders == ["a"]
    assert taken(group, "a") == taken(group, "b") == taken(group, "c")


def test_invariant_nothing_committed_is_cut():
    """The leader that asks for it contradicts a majority: this member ends instead."""
    group = elected()
    group.propose("a", b"\x001")
    group.pass_time(0.3)
    before = taken(group, "b")
    with pytest.raises(Contradiction):
        group["b"].step(group.now, "c", AppendEntries(2, 1, 3, 1, 0, entries(2, 2)))
    assert taken(group, "b") == before


def test_invariant_leader_completeness_only_one_that_has_what_is_committed_is_elected():
    """The member that missed it stands first, and the other is elected."""
    group = elected()
    group.down.add("b")
    group.propose("a", b"\x001")
    group.pass_time(0.3)
    group.down = {"a"}
    group.pass_time(6)
    assert group.leaders == ["c"]
    assert group.applied["b"] == group.applied["c"] == [b"\x001"]


def test_invariant_applied_prefixes_are_equal():
    """Whatever a member has applied is the beginning of what the others have."""
    group = elected()
    for number in range(12):
        group.down = {IDS[number % 3]} - set(group.leaders)
        for each in group.leaders:
            group.propose(each, b"\x00%d" % number)
        group.pass_time(0.15)
        longest = max(group.applied.values(), key=len)
        assert all(longest[: len(each)] == each for each in group.applied.values())
    group.down.clear()
    group.pass_time(2)
    assert group.applied["a"] == group.applied["b"] == group.applied["c"]
    assert len(group.applied["a"]) == 12


def test_invariant_the_snapshot_names_the_entry_it_ends_with():
    """A state whose last entry is in the log with the same term leaves the entries behind it; else it replaces them."""
    group = Group(*IDS, logs={"b": entries(1, 1, 1), "c": entries(1, 1, 1)})
    group["b"].install(StateSnapshot((b"\x003", 3, 1), Membership(IDS), b"state"))
    assert group["b"].log.place == (1, 4)
    group["c"].install(StateSnapshot((b"other", 3, 2), Membership(IDS), b"state"))
    assert group["c"].log.place == (2, 3)
    assert group["c"].log.term(3) == 2


def test_invariant_a_removed_member_elects_nobody_and_is_not_elected():
    """It knows of its removal and does not stand; one that does not know it has a log that is behind."""
    group = elected()
    group["a"].change(group.now, Membership(("a", "b")))
    group.settle("a")
    group.cut |= {("a", "c"), ("b", "c")}
    group.pass_time(1)
    group.down.add("a")
    group.cut.clear()
    group.pass_time(10)
    assert group["c"].members.current == Membership(IDS), "it was removed before it heard of it"
    assert group.leaders == [], "its vote makes no majority of the two that are left"
    assert group.ask("b", "c", VoteRequest(9, 2, 1)).answer is VoteAnswer.REJECT_SMALL_LEDGER_END_INDEX
    group.down.clear()
    group.pass_time(3)
    (leader,) = group.leaders
    assert leader in ("a", "b")
    last = taken(group, leader)[1:]
    group["c"].step(group.now, leader, AppendEntries(group[leader].hard.term, 1, 3, 1, 0, last))
    group.settle("c")
    group.links.clear()
    group.down |= {"a", "b"}
    group.pass_time(10)
    assert group["c"].role is RaftRole.FOLLOWER
    assert not any(group.links.values())


def test_invariant_a_vote_of_a_removed_member_does_not_count():
    """The candidate that knows of the removal counts only the voters that are left."""
    group = elected()
    group["a"].change(group.now, Membership(("a", "b")))
    group.settle("a")
    group.pass_time(1)
    group.down.add("a")
    group.pass_time(5)
    group["b"].step(group.now, "a", StandNow(1))
    assert group["b"].role is RaftRole.CANDIDATE
    group["b"].step(group.now, "c", Voted(2, VoteAnswer.ACCEPT))
    assert group["b"].role is RaftRole.CANDIDATE
    group["b"].step(group.now, "a", Voted(2, VoteAnswer.ACCEPT))
    assert group["b"].role is RaftRole.LEADER


def test_a_state_larger_than_the_limit_is_refused_before_it_is_held():
    """What a leader announces is judged, not what has come."""
    group = elected()
    with pytest.raises(RemoteViolation, match="at most"):
        group["b"].step(group.now, "a", InstallState(1, 1, 99, 0, b"x", 1 << 40))
    assert group["b"].arrived() is None


def test_an_entry_that_names_no_members_is_refused_before_the_log_has_it():
    """In the log it would keep this member from starting again."""
    group = elected()
    before = taken(group, "b")
    with pytest.raises(RemoteViolation, match="names no members"):
        group["b"].step(group.now, "a", AppendEntries(1, 1, 2, 2, 1, [(CONFIGURATION + b"?", 3, 1)]))
    assert taken(group, "b") == before
