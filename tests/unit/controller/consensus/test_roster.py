"""Who is turned away, and who counts when one is removed: only what is committed, and only those that acknowledge."""

from __future__ import annotations

import pytest

from controller.consensus.roster import Introduction, Roster
from controller.raft.membership import MemberPlace, Membership
from remoting.protocol.errors import LocalMisuse
from tests.unit.controller.raft.group import IDS, elected

PLACES = {each: MemberPlace(each, each, 1, number, f"{each}-1") for number, each in enumerate(IDS, 1)}


def said(node_id, group=""):
    return Introduction(f"{node_id}-1", group, voter=True, term=1, host=node_id, port=1, raft_port=9)


def roster_of(group, node_id="a"):
    """A member's, which has heard of the others."""
    made = Roster(group[node_id], PLACES[node_id], PLACES, copied=False)
    for each in set(IDS) - {node_id}:
        assert made.introduced(each, said(each)) == ""
    return made


def named():
    """A group whose log names its members' directories."""
    group = elected()
    group["a"].change(group.now, Membership(IDS, (), tuple(PLACES.values()), "a-1"))
    group.settle("a")
    group.pass_time(0.3)
    return group


def test_a_removal_that_is_not_committed_turns_nobody_away():
    """It may be cut again, and until then the others may need the one that it names to elect a leader."""
    group = named()
    roster = roster_of(group)
    group.cut |= {("a", "b"), ("a", "c")}
    group["a"].change(group.now, roster.removed("c", 0.0))
    group.settle("a")
    assert group["a"].members.current.voters == ("a", "b")
    assert roster.stranger("c") == ""
    assert roster.introduced("c", said("c")) == ""
    group.cut.clear()
    group.pass_time(2)
    assert "was replaced or removed" in roster.stranger("c")


def test_a_group_that_is_not_committed_refuses_no_other():
    """Two leaders may each have begun to give the group its identity; one of them will be cut."""
    group = named()
    roster = roster_of(group)
    assert roster.introduction.group == ""
    assert roster.introduced("b", said("b", "b-1")) == ""
    roster.group = "a-1"
    assert "belongs to another group" in roster.introduced("b", said("b", "b-1"))


def test_one_that_does_not_vote_yet_does_not_make_up_a_majority():
    """It answers the leader, and acknowledges nothing: without the one that is removed nobody could be elected."""
    group = named()
    group["c"].admitted = False
    group["a"].connected(group.now, "c", connected=True)
    group.pass_time(0.5)
    with pytest.raises(LocalMisuse, match="without b too few would run: start c first"):
        roster_of(group).removed("b", 0.0)
