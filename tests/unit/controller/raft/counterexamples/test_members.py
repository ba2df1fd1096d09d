"""Members that change: for each rule the history in which two majorities do not know of each other without it."""

from __future__ import annotations

from contextlib import suppress

import pytest

from controller.raft.core import RaftRole
from controller.raft.membership import Membership
from remoting.protocol.errors import LocalMisuse
from tests.support.plants import Plant
from tests.unit.controller.raft.counterexamples.rules import CORE, LEADING, counterexample
from tests.unit.controller.raft.counterexamples.script import Script
from tests.unit.controller.raft.group import IDS

FOUR = ("a", "b", "c", "d")
FIVE = (*FOUR, "e")


@counterexample(
    "members change behind an entry of the leader's own term",
    Plant("members-too-early", CORE + "change", "max(leading.began, self.members.index)", "self.members.index"),
)
def test_the_error_of_2015_in_changes_of_one_member():
    """a adds e to {a, b, c, d} and reaches nobody; b, of the next term, removes a, and reaches c.

    Each change is a single step from the same four. {b, c} is a majority of {b, c, d}, and {a, d, e} one of
    {a, b, c, d, e}: they share nobody, and each commits an entry of its own at one index.
    """
    script = Script(*FOUR, learners=("e",))
    script.elect("a", *FOUR[1:])
    script.pass_time(0.5)
    script.alone("a")
    script.become("a", FIVE)
    script.links.clear()
    script.elect("b", "c", "d")
    script.lose("b", "d")
    with suppress(LocalMisuse):
        script.become("b", ("b", "c", "d"))
    script.pass_on("b", "c")
    script.together()
    script.elect("a", "d", "e")
    for each in ("d", "e"):
        script.pass_on("a", each)
    assert script["a"].log.committed == 4
    assert script["b"].members.current == Membership(FOUR, ("e",))


@counterexample(
    "one change of members at a time",
    Plant("two-changes-at-once", CORE + "change", "max(leading.began, self.members.index)", "leading.began"),
)
def test_two_changes_are_on_their_way_at_once():
    """a adds d, and e before that is committed: {a, d, e} is a majority of five, and {b, c} one of the three before."""
    script = Script(*IDS, learners=("d", "e"))
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    script.alone("a", "d", "e")
    script.become("a", FOUR, ("e",))
    with suppress(LocalMisuse):
        script.become("a", FIVE)
    script.pass_on("a", "d")
    script.pass_on("a", "e")
    script.elect("b", "c")
    script.pass_on("b", "c")
    assert script["a"].log.committed < script["a"].log.last_index


@counterexample(
    "voters change one at a time",
    Plant(
        "two-voters-in-one-step",
        "controller.raft.membership:Membership.check_next",
        "if len(changed) > 1:",
        "if False:",
    ),
)
def test_two_voters_come_in_one_step():
    """The same two majorities, from a single entry: {a, d, e} and {b, c}."""
    script = Script(*IDS, learners=("d", "e"))
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    script.alone("a", "d", "e")
    with suppress(LocalMisuse):
        script.become("a", FIVE)
    script.pass_on("a", "d")
    script.pass_on("a", "e")
    script.elect("b", "c")
    script.pass_on("b", "c")
    assert script["a"].members.current == Membership(IDS, ("d", "e"))


@counterexample(
    "a change counts from its entry on",
    Plant("followers-count-the-old-ones", CORE + "_append", "self.members.appended(entry)", "pass"),
)
def test_a_follower_that_has_the_entry_goes_by_it():
    """a has added d and e, each committed. b and c have the entries, and are two of five now, not two of three."""
    script = Script(*IDS, learners=("d", "e"))
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    script.become("a", FOUR, ("e",))
    script.pass_time(0.5)
    script.become("a", FIVE)
    script.pass_time(0.5)
    script.alone("b", "c")
    script.propose("a", b"\x00x")
    script.pass_on("a", "d")
    script.pass_on("a", "e")
    script.pass_time(4)
    assert script["a"].members.current.voters == FIVE
    assert script.leaders == ["a"]


@counterexample(
    "a change goes with its entry",
    Plant("members-survive-a-cut", CORE + "_append", "self.members.cut(conflict)", "pass"),
)
def test_the_entry_of_a_change_is_cut():
    """a adds d, e hears nothing of it; the next leader writes over it, and a counts the members of before."""
    script = Script(*IDS, learners=("d",))
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    script.alone("a")
    script.become("a", FOUR)
    script.pass_time(4)
    script.together()
    script.pass_time(2)
    assert {raft.members.current for raft in script.members.values()} == {Membership(IDS, ("d",))}


@counterexample(
    "a voter has learned everything first",
    Plant("behind-and-voter", CORE + "change", "if not leading.caught_up(each):", "if False:"),
    Plant("nobody-learns-first", "controller.raft.membership:Membership.check_next", "if strangers:", "if False:"),
)
def test_an_empty_member_becomes_a_voter():
    """The only voter adds one that has nothing: nothing can be committed until that one has everything."""
    script = Script("a", learners=("d",))
    script.elect("a")
    script.pass_time(0.5)
    script.alone("d")
    script.propose("a", b"\x00x")
    with pytest.raises(LocalMisuse, match="stays a learner"):
        script.become("a", ("a", "d"))
    with pytest.raises(LocalMisuse, match="a learner first"):
        script.become("a", ("a", "z"), ("d",))
    script.propose("a", b"\x00y")
    assert script.applied["a"] == [b"\x00x", b"\x00y"]


@counterexample(
    "learners decide nothing",
    Plant(
        "learners-count",
        LEADING + "commit",
        "index = sorted((durable.get(each, 0) for each in voters), reverse=True)",
        "index = sorted(durable.values(), reverse=True)",
    ),
)
def test_only_a_learner_has_the_entry():
    """a commits with its learner d and dies; b and c, a majority, have never heard of the entry."""
    script = Script(*IDS, learners=("d",))
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    script.alone("a", "d")
    script.propose("a", b"\x00x")
    script.pass_on("a", "d")
    script.elect("b", "c")
    script.pass_on("b", "c")
    assert script.agreed[3][1] == "b"


@counterexample(
    "a leader that left does not count itself",
    Plant(
        "counts-itself",
        LEADING + "commit",
        "(durable.get(each, 0) for each in voters)",
        "(durable.get(each, 0) for each in {*voters, self.own})",
    ),
    Plant(
        "present-to-itself",
        LEADING + "majority_present_since",
        "return present + (self.own in voters) >=",
        "return present + 1 >=",
    ),
)
def test_the_leader_of_two_removes_itself_and_the_other_hears_nothing():
    """The other one alone is the majority from now on: until it has the entry, the group has not decided."""
    script = Script("a", "b")
    script.elect("a", "b")
    script.pass_time(0.5)
    script.alone("a")
    script.become("a", ("b",))
    script.pass_time(0.5)
    assert script["a"].log.committed == 2
    script.pass_time(3)
    assert script["a"].role is not RaftRole.LEADER


@counterexample(
    "who leaves may lead until that is committed",
    Plant(
        "only-the-newest-count",
        CORE + "_may_lead",
        "{*members.current.voters, *agreed.voters}",
        "members.current.voters",
    ),
    Plant("only-the-newest-stand", CORE + "tick", "self._may_lead", "self.node_id in self.members.current.voters"),
)
@pytest.mark.parametrize("event", ["connection lost", "power cut"])
def test_the_leader_of_two_removes_itself_and_both_meet_again(event):
    """b may not lead without a's entry, and a is not in the newest members: each would wait for the other."""
    script = Script("a", "b")
    script.elect("a", "b")
    script.propose("a", b"\x00x")
    script.pass_time(0.5)
    script.alone("a")
    script.become("a", ("b",))
    script.pass_time(5)
    if event == "power cut":
        script.restart("a")
    assert script.leaders == []
    script.together()
    script.pass_time(6)
    assert script.leaders == ["b"]
    assert script["b"].members.current == Membership(("b",))
    script.propose("b", b"\x00y")
    assert script.applied["b"] == [b"\x00x", b"\x00y"]


@counterexample(
    "a leader that left steps down",
    Plant("leads-on-outside", CORE + "_lead_on", "if gone or not", "if not"),
)
def test_the_leader_of_three_removes_itself():
    """It leads until the others have agreed, and no longer: then one of them does, and it stands no more."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    script.become("a", ("b", "c"))
    script.pass_time(0.3)
    assert script["a"].role is RaftRole.FOLLOWER
    script.pass_time(5)
    assert script.leaders in (["b"], ["c"])
    assert script["a"].hard.term < script[script.leaders[0]].hard.term


def test_the_leader_of_two_removes_itself_and_its_power_fails_at_any_moment():
    """Whatever of it reached the other one: in the end the other one leads, and has everything that was committed."""
    for steps in range(8):
        script = Script("a", "b")
        script.elect("a", "b")
        script.propose("a", b"\x00x")
        script.pass_time(0.5)
        script.become("a", ("b",))
        for step in range(steps):
            script.deliver("a", "b") if step % 2 else script.deliver("b", "a")
        script.alone("a")
        script.restart("a")
        script.pass_time(5)
        script.together()
        script.pass_time(8)
        assert script.leaders == ["b"], steps
        script.propose("b", b"\x00y")
        script.pass_time(1)
        assert script.applied["b"] == [b"\x00x", b"\x00y"], steps
        assert script["a"].role is RaftRole.FOLLOWER, steps
