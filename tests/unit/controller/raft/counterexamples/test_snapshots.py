"""States in place of entries: for each rule the history in which a member knows less, or something else, without it."""

from __future__ import annotations

from controller.raft import leading
from controller.raft.leading import StateSnapshot
from controller.raft.membership import Membership
from controller.raft.messages import AppendEntries, InstallState
from tests.support.plants import Plant
from tests.unit.controller.raft.counterexamples.rules import CORE, LEADING, counterexample
from tests.unit.controller.raft.counterexamples.script import Script
from tests.unit.controller.raft.group import IDS, entries

FIVE = (*IDS, "d", "e")


@counterexample(
    "a state brings its members",
    Plant(
        "a-state-keeps-the-members", CORE + "install", "self.members.replace(snapshot.index, snapshot.members)", "pass"
    ),
    Plant(
        "a-state-has-the-first-members",
        "controller.raft.membership:MemberHistory.at",
        "reversed(self._known)",
        "self._known",
    ),
)
def test_a_member_was_away_while_two_came():
    """c gets a state in place of the entries that added d and e. With three members in mind, b and c elect c.

    a, d and e, a majority of the five, commit meanwhile what neither b nor c has.
    """
    script = Script(*IDS, learners=("d", "e"))
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    script.alone("c")
    script.become("a", FIVE[:4], ("e",))
    script.pass_time(0.3)
    script.become("a", FIVE)
    script.pass_time(0.3)
    script.compact("a")
    script.together()
    script.installed = []
    script.pass_time(1)
    assert script.installed == ["c"]
    script.alone("b", "c")
    script.propose("a", b"\x00x")
    script.pass_on("a", "d")
    script.pass_on("a", "e")
    script.stand("c")
    script.pass_on("c", "b")
    assert script.leaders == ["a"]
    script.restart("c")
    assert script["c"].members.current.voters == FIVE


@counterexample(
    "a state changes nothing that is committed",
    Plant("goes-back-to-a-state", CORE + "install", "if snapshot.index <= log.committed:", "if False:"),
)
def test_a_state_comes_after_what_it_holds():
    """b has applied 4 when a state after 2 arrives, which was on its way for long: it would apply 3 and 4 again."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.propose("a", b"\x00x", b"\x00y")
    script.pass_time(0.3)
    script["b"].install(StateSnapshot(script["a"].log.entries(2, 3, 1)[0], Membership(IDS), b"state of 2"))
    script.settle("b")
    assert (script["b"].log.committed, script["b"].applied) == (4, 4)


@counterexample(
    "a state keeps what follows it",
    Plant("drops-the-tail", CORE + "install", "if log.term(snapshot.index) == snapshot.term:", "if False:"),
)
def test_a_state_arrives_at_a_member_that_has_acknowledged_more():
    """b has entries 2 to 4, and a counts on 4, when the state after 3 is there at last; a dies, and c elects b."""
    script = Script(*IDS)
    script.elect("a", "b")
    script.propose("a", b"\x00x", b"\x00y")
    script.pass_on("a", "b")
    assert (script["a"].log.committed, script["b"].log.committed) == (4, 2)
    script.lose("a", "b")
    script.compact("a")
    script["b"].install(StateSnapshot((b"\x00x", 3, 1), Membership(IDS), b"s"))
    script.settle("b")
    script.alone("a")
    script.elect("b", "c")
    assert script["b"].log.entries(4, 5, 1) == [(b"\x00y", 4, 1)]


@counterexample(
    "a state is put together in order",
    Plant("a-piece-comes-twice", CORE + "_install", "if message.offset == len(data):", "if True:"),
    Plant(
        "pieces-of-two-states",
        CORE + "_install",
        "work.incoming is None or work.incoming.index != message.index",
        "work.incoming is None",
    ),
)
def test_pieces_come_twice_and_of_two_states():
    """The leader repeats what was not answered, and goes over to a newer state when it has one."""
    script = Script(*IDS)
    old, new = b"older state", b"NEWER"
    pieces = [
        InstallState(1, 1, 3, 0, old[:4], len(old)),
        InstallState(1, 2, 3, 0, old[:4], len(old)),
        InstallState(1, 3, 9, 0, new[:2], len(new)),
        InstallState(1, 4, 9, 0, new[:2], len(new)),
        InstallState(1, 5, 9, 2, new[2:], len(new)),
    ]
    script.take("b", "a", *pieces)
    assert script["b"].arrived() == new


@counterexample(
    "what a state holds is not compared again",
    Plant("compares-what-is-gone", CORE + "_append", "if before < log.first_index:", "if False:"),
)
def test_entries_come_that_a_state_holds():
    """b has a state after 4; a message that was late brings 3 to 5, and 3 is neither a contradiction nor missing."""
    script = Script(*IDS)
    script["b"].install(StateSnapshot((b"\x004", 4, 1), Membership(IDS), b"state of 4"))
    script.settle("b")
    script.take("b", "a", AppendEntries(1, 1, 5, 2, 1, entries(1, 1, 1, start=3)))
    assert script["b"].log.committed == 5
    assert script.waiting("b", "a")[-1].matched


@counterexample(
    "entries that are gone are sent as a state",
    Plant(
        "asks-the-log-only",
        LEADING + "_to",
        "self._log.term(progress.next - 1) is None",
        "progress.next <= self._log.first_index - 100",
    ),
)
def test_a_member_is_behind_what_the_leader_has_left_out(monkeypatch):
    """It gets the state in pieces, one at a time, and the entries behind it from the log."""
    monkeypatch.setattr(leading, "PIECE_BYTES", 4)
    script = Script(*IDS)
    script.installed = []
    script.elect("a", "b", "c")
    script.pass_time(0.3)
    script.alone("c")
    script.propose("a", b"\x00x", b"\x00y")
    script.pass_time(0.3)
    script.compact("a")
    script.together()
    script.pass_time(2)
    script.propose("a", b"\x00z")
    script.pass_time(0.3)
    assert script.installed == ["c"]
    assert script.applied["c"] == [b"\x00z"]
