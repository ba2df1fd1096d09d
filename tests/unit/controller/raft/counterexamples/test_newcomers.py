"""Members whose files are gone: each rule's history, in which a majority rests on what one of them forgot."""

from __future__ import annotations

from controller.raft.messages import InstallState
from tests.support.plants import Plant
from tests.unit.controller.raft.counterexamples.rules import CORE, LEADING, counterexample
from tests.unit.controller.raft.counterexamples.script import Script
from tests.unit.controller.raft.group import IDS


@counterexample(
    "who lost its files does not vote",
    Plant("a-second-vote", CORE + "_vote", "if not self.admitted:", "if False:"),
)
def test_a_voter_forgets_whom_it_elected():
    """b elected a in term 1, lost its files, and is asked by c for the vote of the same term."""
    script = Script(*IDS)
    script.elect("a", "b")
    script.links.clear()
    script.restart("b", emptied=True)
    script.stand("c")
    script.pass_on("c", "b")
    assert script.leaders == ["a"]


@counterexample(
    "who lost its files does not stand",
    Plant("stands-without-files", CORE + "tick", "self.admitted and self._may_lead", "self._may_lead"),
    Plant("heir-without-files", CORE + "step", "self._may_lead and self.admitted", "self._may_lead"),
)
def test_an_emptied_member_would_elect_itself():
    """It voted for c in term 1, knows nothing of it, and asks for its own votes in that term."""
    script = Script(*IDS)
    script.elect("c", "b")
    script.links.clear()
    script.restart("b", emptied=True)
    script.now += 3
    script["b"].tick(script.now)
    script.stand("b")
    script.pass_on("b", "a")
    assert script.leaders == ["c"]


@counterexample(
    "who lost its files acknowledges nothing",
    Plant("acknowledges-again", CORE + "_append", "if not self.admitted:", "if False:"),
)
def test_a_voter_forgets_that_it_left_a_leader():
    """b elected c in term 2, lost its files, and goes on following a of term 1, which counts it for a majority."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    script.alone("a")
    script.elect("c", "b")
    beats = script.lose("c", "b")
    script.restart("b", emptied=True)
    script.cut = {pair for pair in script.cut if "b" not in pair}
    script["a"].connected(script.now, "b", connected=True)
    script.propose("a", b"\x00x")
    for _ in range(4):
        script.pass_on("a", "b")
    script["b"].admitted = True
    script.take("b", "c", *beats)
    script["c"].connected(script.now, "b", connected=True)
    for _ in range(4):
        script.settle("c")
        script.pass_on("c", "b")
    assert script["a"].log.committed == 2


@counterexample(
    "who lost its files is not present",
    Plant("present-without-files", LEADING + "_note_contact", "if number:", "if True:"),
    Plant("a-round-without-files", CORE + "_serve", "message.round if self.admitted else 0", "message.round"),
)
def test_a_leader_hears_only_of_one_that_lost_its_files():
    """b and c may have elected another one before b's files went; a must not go on as if b still followed it."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    script.alone("c")
    script.restart("b", emptied=True)
    script["a"].connected(script.now, "b", connected=True)
    script["a"].read("r")
    script.pass_time(5)
    assert script.reads == [("r", False)]
    assert script.leaders == []


@counterexample(
    "who lost its files takes a state and says nothing",
    Plant(
        "acknowledges-a-state", CORE + "install", "self.leader is not None and self.admitted", "self.leader is not None"
    ),
    Plant("acknowledges-an-older-state", CORE + "_install", "if not self.admitted:", "if False:"),
)
def test_an_emptied_member_gets_a_state():
    """What is in it is committed, and yet the leader counts it only once the member is admitted."""
    script = Script(*IDS)
    script.installed = []
    script.elect("a", "b", "c")
    script.propose("a", b"\x00x")
    script.pass_time(0.5)
    script.compact("a")
    script.restart("b", emptied=True)
    script["a"].connected(script.now, "b", connected=True)
    script.alone("c")
    script.pass_time(0.5)
    assert script.installed == ["b"]
    assert script["a"].leading.progress["b"].match == 0
    script.take("b", "a", InstallState(1, 9, 3, 0, b"again", 5))
    assert not script.waiting("b", "a")[-1].matched
