"""What is committed stays: for each rule the history that ends in two entries at one index without it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as changed

from controller.raft.core import Contradiction, RaftRole
from controller.raft.messages import AppendEntries
from tests.support.plants import Plant
from tests.unit.controller.raft.counterexamples.rules import CORE, LEADING, counterexample
from tests.unit.controller.raft.counterexamples.script import Script
from tests.unit.controller.raft.group import IDS, entries

FIVE = ("s1", "s2", "s3", "s4", "s5")


@counterexample(
    "a majority commits entries of the leader's own term only",
    Plant(
        "counts-entries-of-older-terms",
        LEADING + "commit",
        "if index > self._log.committed and self._log.term(index) == self.term:",
        "if index > self._log.committed:",
    ),
)
def test_figure_8_of_raft():
    """s1 led term 2 and gave entry 2 to s2; s5 led term 3 and wrote its own; s1 leads term 4 and gives entry 2 to s3.

    A majority has it, and s5 may still overwrite it: its last term is later than that of s2, s3 and s4.
    """
    script = Script(*FIVE, logs={"s1": entries(2), "s2": entries(2), "s5": entries(3)}, terms=dict.fromkeys(FIVE, 3))
    script.elect("s1", "s2", "s4")
    script.deliver("s1", "s3")
    script.deliver("s3", "s1")  # it has no entry 2 yet, so that comes next
    for each in ("s2", "s3"):
        script.take(each, "s1", *_up_to(2, script.lose("s1", each)))
        script.deliver(each, "s1")
    script.alone("s1")
    script.restart("s1")
    script.elect("s5", "s3", "s4")
    for each in ("s2", "s3", "s4"):
        script.pass_on("s5", each)
    assert script["s5"].log.committed == 3
    assert script["s3"].log.term(2) == 3


def _up_to(index, messages):
    """What a leader has sent, before it wrote what is behind this entry."""
    return [changed(each, entries=[one for one in each.entries if one[1] <= index]) for each in messages]


@counterexample(
    "a term begins with an entry of its own",
    Plant("no-no-op", CORE + "_count", "self.log.append(NO_OP, self.hard.term)", "pass"),
)
def test_nobody_sends_a_new_leader_a_command():
    """What is on all disks would wait for ever: only an entry of the new term commits it."""
    script = Script(*IDS, logs={each: entries(1, 1) for each in IDS}, terms=dict.fromkeys(IDS, 1))
    script.elect("a", "b", "c")
    script.pass_time(0.5)
    assert {raft.log.committed for raft in script.members.values()} == {4}


@counterexample(
    "entries follow one that both have",
    Plant(
        "any-entry-before",
        CORE + "_append",
        "known = log.term(before) == message.before_term",
        "known = log.term(before) is not None",
    ),
)
def test_a_follower_has_another_entry_before_what_it_gets():
    """b wrote entry 2 itself. It takes entry 3 from a, applies its own entry 2 with it, and a another one."""
    script = Script(*IDS, logs={"a": entries(2), "b": entries(1), "c": entries(2)}, terms=dict.fromkeys(IDS, 2))
    script.elect("a", "c")
    script.pass_on("a", "c")
    script.pass_on("a", "b")
    script.pass_time(0.3)
    assert script["b"].log.entries(2, 4, 1 << 20) == script["a"].log.entries(2, 4, 1 << 20)


@counterexample(
    "what contradicts a leader goes",
    Plant(
        "keeps-what-conflicts",
        "controller.raft.log:RaftLog.follow",
        "if self.term(index) not in (None, term):",
        "if False:",
    ),
)
def test_a_follower_has_a_tail_that_nobody_else_has():
    """b wrote entries 2 and 3 in a term that is over, and the leader of the next one writes others there."""
    script = Script(*IDS, logs={"b": entries(1, 1)}, terms=dict.fromkeys(IDS, 1))
    script.elect("a", "c")
    script.propose("a", b"\x00x")
    for each in ("b", "c"):
        script.lose("a", each)
    script["b"].step(script.now, "a", AppendEntries(2, 1, 3, 1, 0, script["a"].log.entries(2, 4, 1 << 20)))
    script.settle("b")
    script.pass_on("b", "a")
    script.pass_time(0.3)
    assert script.applied["b"] == script.applied["a"] == [b"\x00x"]


@counterexample(
    "only what contradicts a leader goes",
    Plant(
        "cuts-behind-every-message",
        "controller.raft.log:RaftLog.follow",
        "if self.term(index) not in (None, term):",
        "if self.committed < index <= self.last_index:",
    ),
)
def test_a_message_comes_again_after_the_next_one_was_acknowledged():
    """b has acknowledged entry 3, and a has told a client, when the message with entry 2 arrives once more."""
    script = Script(*IDS)
    script.elect("a", "b")
    late = list(script.waiting("a", "b"))
    script.lose("a", "c")
    script["a"].propose(b"\x00x")
    script.take("b", "a", AppendEntries(1, 2, 1, 1, 0, script["a"].log.entries(2, 4, 1 << 20)))
    script.settle("a")
    script.lose("a", "b")
    script.lose("a", "c")
    script.deliver("b", "a")
    script.take("b", "a", *late)
    script.alone("a")
    script.elect("b", "c")
    assert script["b"].log.term(3) == 1


@counterexample(
    "a follower commits what was compared",
    Plant(
        "believes-the-commit-position",
        CORE + "_append",
        "max(log.committed, min(message.committed, end))",
        "max(log.committed, min(message.committed, log.last_index))",
    ),
)
def test_a_heartbeat_of_a_new_leader_meets_an_old_tail():
    """It says that 3 is committed. b has an entry 3 too, and it is another one."""
    script = Script(*IDS, logs={"b": entries(1, 1)}, terms=dict.fromkeys(IDS, 1))
    script.elect("a", "c")
    script.propose("a", b"\x00x")
    script.pass_on("a", "c")
    script.lose("a", "b")
    script.take("b", "a", AppendEntries(2, 9, 3, 1, 0, []))
    assert script["b"].log.committed == 1


@counterexample(
    "a follower acknowledges what was compared",
    Plant(
        "acknowledges-its-end",
        CORE + "_append",
        "number, matched=True, index=end)",
        "number, matched=True, index=log.last_index)",
    ),
)
def test_a_heartbeat_of_a_new_leader_is_acknowledged_by_an_old_tail():
    """b's own entries 2 and 3 would count as the leader's, which has them alone, commits them and dies."""
    script = Script(*IDS, logs={"b": entries(1, 1)}, terms=dict.fromkeys(IDS, 1))
    script.elect("a", "c")
    script.propose("a", b"\x00x")
    for each in ("b", "c"):
        script.lose("a", each)
    script.take("b", "a", AppendEntries(2, 9, 1, 1, 0, []))
    script.deliver("b", "a")
    script.alone("a")
    script.elect("b", "c")
    script.pass_on("b", "c")
    assert script["a"].log.committed == 1


@counterexample(
    "the leader counts what is on its own disk",
    Plant(
        "counts-what-it-writes", LEADING + "commit", "self.own: self._log.stable}", "self.own: self._log.last_index}"
    ),
)
def test_a_leaders_power_fails_while_its_entry_is_acknowledged():
    """b has the entry, a answers its client and has not written it; b dies, and a and c go on without it."""
    script = Script(*IDS)
    script.elect("a", "b")
    script.pass_on("a", "b")
    script["a"].propose(b"\x00x")
    early = script["a"].ready()  # it is being written
    script.take("b", "a", *[message for peer, message in early.early if peer == "b"])
    for message in script.lose("b", "a"):
        script["a"].step(script.now, "b", message)
    again = script["a"].ready()
    assert script["a"].log.committed == 2
    assert again is None or again.committed == []


@counterexample(
    "applied is what is committed and on the own disk",
    Plant("applies-what-it-writes", CORE + "ready", "end = min(log.committed, log.stable)", "end = log.committed"),
)
def test_a_machine_is_not_ahead_of_its_log():
    """A single message brings an entry and says that it is committed: the disk comes first, then the machine."""
    script = Script(*IDS)
    script["b"].step(script.now, "a", AppendEntries(1, 1, 2, 1, 0, entries(1)))
    ready = script["b"].ready()
    assert [index for _, index, _ in ready.entries] == [2]
    assert ready.committed == []


@counterexample(
    "what a member acknowledged counts for its connection",
    Plant("counts-what-a-lost-disk-had", LEADING + "reconnected", "progress.match = 0", "pass"),
)
def test_a_member_acknowledged_and_lost_its_disk():
    """s2 had the entry, lost it and was admitted again; s3 makes up the majority of three that are two by then."""
    script = Script(*FIVE)
    script.elect("s1", "s2", "s3")
    script.pass_time(0.3)
    script.propose("s1", b"\x00x")
    script.pass_on("s1", "s2")
    for each in FIVE[2:]:
        script.lose("s1", each)
    script.restart("s2", emptied=True)
    script["s1"].connected(script.now, "s2", connected=True)
    script["s2"].admitted = True
    script.settle("s1")
    for each in FIVE[1:]:
        script.lose("s1", each)
    script.take("s3", "s1", AppendEntries(1, 9, 2, 2, 1, script["s1"].log.entries(3, 4, 1 << 20)))
    script.deliver("s3", "s1")
    script.alone("s1", "s3")
    assert script["s1"].log.committed == 2


@counterexample(
    "nothing is taken from a leader of an older term",
    Plant("takes-from-anyone", CORE + "_serve", "if message.term < self.hard.term:", "if False:"),
)
def test_an_old_leader_goes_on_writing():
    """c has elected b in term 2; a, of term 1, writes to c what it then counts as committed."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.pass_time(0.3)
    script.propose("a", b"\x00x")
    late = script.lose("a", "c")
    script.lose("a", "b")
    script.elect("b", "c")
    script.lose("b", "c")
    script.take("c", "a", *late)
    assert script["c"].log.last_index == 2


@counterexample(
    "nothing committed is cut",
    Plant("contradicted-before", CORE + "_append", "if term is not None and before <= log.committed:", "if False:"),
    Plant("contradicted", CORE + "_append", "if conflict and conflict <= log.committed:", "if False:"),
)
def test_a_leader_contradicts_what_is_committed():
    """Some disk lost what it had promised. Whoever notices stops; going on would make two histories."""
    script = Script(*IDS)
    script.elect("a", "b", "c")
    script.propose("a", b"\x00x")
    script.pass_time(0.3)
    with pytest.raises(Contradiction):
        script["b"].step(script.now, "c", AppendEntries(5, 1, 3, 2, 1, [(b"\x00other", 3, 4)]))
    with pytest.raises(Contradiction):
        script["c"].step(script.now, "b", AppendEntries(5, 1, 3, 3, 4, []))
    assert script["a"].role is RaftRole.LEADER


@counterexample(
    "a term is on disk before it is shown",
    Plant(
        "shows-its-term",
        CORE + "ready",
        "(ready.messages if hard else ready.early).extend(sent)",
        "ready.early.extend(sent)",
    ),
)
def test_a_single_voter_loses_power_in_its_first_moment():
    """It elects itself; its learner must not have heard of a term that the next start does not know."""
    script = Script("a", learners=("d",))
    script.failing.add("a")
    script.stand("a")
    script.deliver("a", "d")
    assert script["d"].hard.term <= script["a"].hard.term
