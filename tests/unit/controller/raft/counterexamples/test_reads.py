"""Reads and handed-over leads: for each rule the history in which a reader gets what is over, or nobody leads."""

from __future__ import annotations

import pytest

from controller.raft.membership import Membership
from controller.raft.messages import AppendAnswer
from remoting.protocol.errors import LocalMisuse
from tests.support.plants import Plant
from tests.unit.controller.raft.counterexamples.rules import CORE, LEADING, counterexample
from tests.unit.controller.raft.counterexamples.script import Script
from tests.unit.controller.raft.group import IDS


@counterexample(
    "a read waits for a round that began after it",
    Plant("a-round-of-before", LEADING + "read", "self._round + 1", "self._round"),
)
def test_an_old_leader_is_asked_while_an_answer_of_before_is_on_its_way():
    """b leads by now and has committed another value; c's answer to a was sent before that."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.3)
    script["a"].tick(script.now + 0.2)
    script.settle("a")
    script.deliver("a", "c")
    late = script.lose("c", "a")
    assert [type(each) for each in late] == [AppendAnswer]
    script.alone("a")
    script.elect("b", "c")
    script.propose("b", b"\x00new")
    script.pass_on("b", "c")
    script["a"].read("r")
    script.take("a", "c", *late)
    assert script.reads == []


def reads_at_once(patch):
    """A plant: a reader does not wait for what this leader has not committed yet."""
    Plant("", LEADING + "read", "max(self._log.committed, self.began)", "self._log.committed")(patch)
    Plant("", LEADING + "commit", "self.reads.waiting and self._log.committed >= self.began", "self.reads.waiting")(
        patch
    )


@counterexample("a read waits for the entry that begins the term", reads_at_once)
def test_a_new_leader_does_not_know_yet_what_was_committed():
    """a committed x, told its client and died; b has x, and hears that it is committed only with its own entry."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.3)
    script.propose("a", b"\x00x")
    script.deliver("a", "b")
    script.deliver("b", "a")
    script.alone("a")
    script.elect("b", "c")
    script["b"].read("r")
    script.settle("b")
    script.deliver("b", "c")  # it answers the round, and has nothing yet of what came before
    script.deliver("c", "b")
    assert b"\x00x" in script.applied["b"] or script.reads == []


@counterexample(
    "a read waits until it is applied",
    Plant(
        "answers-before-it-applies",
        CORE + "ready",
        "for each in self.leading.reads.confirmed if each[1] > work.handed",
        "for each in ()",
    ),
    Plant(
        "answers-what-is-not-applied",
        CORE + "ready",
        "in self.leading.reads.confirmed if at <= work.handed",
        "in self.leading.reads.confirmed",
    ),
)
def test_a_round_comes_back_before_the_entry_is_applied():
    """The machine is slow: x is committed and being applied, and a reader that came after it is confirmed already."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.3)
    script.propose("a", b"\x00x")
    script.deliver("a", "b")
    for message in script.lose("b", "a"):
        script["a"].step(script.now, "b", message)
    slow = script["a"].ready()
    assert [command for command, _, _ in slow.committed] == [b"\x00x"]
    script["a"].read("r")
    script["a"].ready()  # the round goes out
    script["a"].step(script.now, "b", AppendAnswer(1, 99, matched=True, index=3))
    assert script["a"].ready().reads == []
    script["a"].advance(slow)
    script.settle("a")
    assert script.reads == [("r", True)]


@counterexample(
    "a lost lead answers its readers",
    Plant(
        "readers-wait-for-ever", CORE + "_follow", "self._work.reads += [(each[0], False) for each in waiting]", "pass"
    ),
)
def test_a_leader_is_deposed_while_it_is_asked():
    """They ask another controller then; otherwise each would hold a request until it times out."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.3)
    script["a"].read("r")
    script.take("a", "b", AppendAnswer(7, 0, matched=False, index=1))
    assert script.reads == [("r", False)]


@counterexample(
    "an heir has everything",
    Plant(
        "hands-over-at-once",
        CORE + "_lead_on",
        "if leading.heir and leading.progress[leading.heir].match == self.log.last_index:",
        "if leading.heir:",
    ),
)
def test_the_heir_lacks_an_entry():
    """b stands in a new term, nobody elects it, and the leader is gone for nothing."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.3)
    script["a"].propose(b"\x00x")
    script.settle("a")
    script.lose("a", "b")
    script["a"].hand_over(script.now, "b")
    script.now += 0.01
    script["a"].tick(script.now)
    script.settle("a")
    script.pass_on("a", "b")
    for each in ("a", "c"):
        script.pass_on("b", each)
    assert script["a"].hard.term == 1
    assert script.leaders == ["a"]


@counterexample(
    "who hands over takes nothing more",
    Plant("takes-commands", CORE + "propose", "or self.leading.heir", ""),
    Plant("takes-changes", CORE + "change", "or leading.heir", ""),
)
def test_commands_go_on_coming_while_a_lead_is_handed_over():
    """The heir would never have everything, and the change would be proposed by one that leaves."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.3)
    script["a"].hand_over(script.now, "b")
    assert script["a"].propose(b"\x00x") is None
    with pytest.raises(LocalMisuse):
        script["a"].change(script.now, Membership(IDS, ("d",)))


@counterexample(
    "an heir that does not stand is given up",
    Plant("waits-for-its-heir", CORE + "_lead_on", 'leading.heir = ""', "pass"),
)
def test_the_heir_is_dead():
    """The leader would refuse every command for ever."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.3)
    script.alone("b")
    script["a"].hand_over(script.now, "b")
    script.pass_time(1.5)
    script.propose("a", b"\x00x")
    assert script.leaders == ["a"]
