"""Our engine's node on real files: what it writes, in which order, and what a restart finds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from controller.consensus import dledger_node
from controller.consensus.dledger_node import DledgerNode, Fate
from controller.consensus.engine import SNAPSHOT_FILE, VOTE_FILE
from controller.consensus.journal import RaftSnapshot, Vote, load, save
from controller.raft.core import RaftTimers
from controller.raft.membership import Membership, decode_members
from controller.raft.messages import (
    NO_OP,
    REGULAR,
    AppendAnswer,
    AppendEntries,
    Founded,
    InstallState,
    Voted,
    VoteRequest,
)
from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.voting import VoteAnswer
from tests.sim.raft.machines import Words
from tests.sim.raft.world import raft_world
from tests.support.plants import Plant, catches

TIMERS = RaftTimers(0.04, 0.3, 1.0)
THREE = ("n1", "n2", "n3")
NODE = "controller.consensus.dledger_node:DledgerNode."


@pytest.fixture
def world(tmp_path):
    """Three that agree."""
    with raft_world(tmp_path, 1, engine="dledger", snapshot_entries=1_000) as made:
        for node_id in made.ids:
            made.boot(node_id)
        made.pass_time(2.0)
        made.propose(made.leader())
        made.pass_time(0.3)
        yield made


def follower(world):
    return next(each for each in world.ids if each != world.leader())


def alone(folder, node_id="n1", members=("n1",), sent=None, **options):
    """A node whose messages are kept in `sent`."""
    sent = [] if sent is None else sent
    folder.mkdir(exist_ok=True)
    options = {"snapshot_entries": 1_000} | options
    return DledgerNode(
        folder, node_id, members, Words(), TIMERS, lambda peer, message: sent.append((peer, message)), lambda: 0.5,
        **options,
    )  # fmt: skip


def test_a_group_of_one_decides_alone_and_finds_everything_again(tmp_path):
    """Commands, the term and the vote; snapshots leave the entries behind them."""
    node, fates = alone(tmp_path / "n1", snapshot_entries=5), []
    node.take(0.0, "n1", Founded(0))
    for now in (0.1, 1.0):
        node.tick(now)
        node.settle()
    assert node.leads
    for number in range(12):
        node.propose(REGULAR + b"w%d" % number, lambda answer, fate: fates.append((answer, fate)))
    node.settle()
    assert fates == [(number, Fate.DONE) for number in range(1, 13)]
    assert (node.snapshots, node.log_entries < 8) == (1, True)
    node.close()
    again = alone(tmp_path / "n1", snapshot_entries=5)
    again.tick(2.0)
    again.tick(3.0)
    again.settle()
    assert again._machine.words == [b"w%d" % number for number in range(12)]
    assert again.raft.hard.term == 2


def test_a_vote_is_on_disk_before_it_is_sent(world):
    """What is sent is looked at together with the file as it is at that moment."""
    node_id = follower(world)
    node, seen = world.nodes[node_id], []
    node._send = lambda _peer, message: seen.append((message, load(world.folder / node_id / VOTE_FILE, Vote)))
    term, index = node.raft.log.place
    node.take(world.now, "n9", VoteRequest(node.raft.hard.term + 1, index + 1, term, forced=True))
    node.settle()
    (answer, vote) = next(each for each in seen if isinstance(each[0], Voted))
    assert (vote.term, vote.voted_for) == (answer.term, "n9")


def test_a_vote_that_cannot_be_written_is_not_sent(world, monkeypatch):
    """The error goes through to the engine, which ends; nobody hears of the vote."""
    node_id = follower(world)
    node, sent = world.nodes[node_id], []
    node._send = lambda _peer, message: sent.append(message)

    def fail(_path, _content):
        raise OSError("no space")

    monkeypatch.setattr(dledger_node, "save", fail)
    term, index = node.raft.log.place
    node.take(world.now, "n9", VoteRequest(node.raft.hard.term + 1, index + 1, term, forced=True))
    with pytest.raises(OSError, match="no space"):
        node.settle()
    assert not any(isinstance(each, Voted) for each in sent)


def test_entries_are_on_disk_before_they_are_acknowledged(world):
    node_id = follower(world)
    node, seen = world.nodes[node_id], []
    node._send = lambda _peer, message: seen.append((message, node.journal.syncs))
    term, index = node.raft.log.place
    before = node.journal.syncs
    message = AppendEntries(node.raft.hard.term, 9, 1, index, term, [(REGULAR + b"x", index + 1, node.raft.hard.term)])
    node.take(world.now, world.leader(), message)
    node.settle()
    ((answer, syncs),) = seen
    assert isinstance(answer, AppendAnswer)
    assert answer.matched
    assert syncs == before + 1


def test_readers_and_commands_of_a_leader_that_lost_the_lead_are_told(world):
    """Commands may have been applied; a reader was not answered."""
    leader, fates = world.nodes[world.leader()], []
    world.links.clear()
    leader.propose(REGULAR + b"x", lambda _answer, fate: fates.append(fate))
    leader.read(lambda _answer, fate: fates.append(fate))
    leader.settle()
    leader.take(world.now, "n9", AppendAnswer(leader.raft.hard.term + 1, 0, matched=False, index=1))
    leader.settle()
    assert sorted(fates) == [Fate.NOT_LEADING, Fate.UNKNOWN]
    leader.propose(REGULAR + b"y", lambda _answer, fate: fates.append(fate))
    leader.read(lambda _answer, fate: fates.append(fate))
    assert fates[2:] == [Fate.NOT_LEADING, Fate.NOT_LEADING]


def test_members_in_the_log_outlive_restart_and_snapshot(tmp_path):
    """Those of the configuration count only until an entry names others."""
    node = alone(tmp_path / "n1", snapshot_entries=4)
    node.take(0.0, "n1", Founded(0))
    node.tick(0.0)
    node.tick(1.0)
    node.settle()
    node.raft.change(1.0, Membership(("n1",), ("n2",)))
    node.settle()
    node.close()
    again = alone(tmp_path / "n1", snapshot_entries=4)
    assert again.raft.members.current == Membership(("n1",), ("n2",))
    again.tick(2.0)
    again.tick(3.0)
    for _ in range(9):
        again.propose(REGULAR + b"w", lambda _answer, _fate: None)
    again.settle()
    assert again.snapshots == 1
    again.close()
    assert alone(tmp_path / "n1").raft.members.current == Membership(("n1",), ("n2",))


def leading_three(folder, **options):
    """A node that two others have just elected, in term 1; nobody has acknowledged the entry that began it."""
    node = alone(folder, members=THREE, **options)
    node.take(0.0, "n1", Founded(0))
    node.tick(0.0)
    node.tick(1.0)
    for trial in (True, False):
        node.take(1.0, "n2", Voted(1, VoteAnswer.ACCEPT, trial))
        node.settle()
    return node


@catches(
    Plant("of-all-that-is-in-the-log", NODE + "_compact", "raft.members.at(self.applied)", "raft.members.current"),
    Plant(
        "of-the-configuration",
        NODE + "_as_core",
        "decode_members(snapshot.members) if snapshot.members else self._configured",
        "self._configured",
    ),
    Plant("none", NODE + "_compact", 'raft.members.at(self.applied).command() if raft.members.index else b""', 'b""'),
)
def test_a_snapshot_has_the_members_of_its_last_entry(tmp_path):
    """Not those of a change that may still be cut, and not those of before; here, in the file, and where it is sent."""
    node = leading_three(tmp_path / "n1", snapshot_entries=4)
    more = Membership(THREE, ("n4",))

    def acknowledged(index):
        node.take(1.0, "n2", AppendAnswer(1, 1, matched=True, index=index))

    def found():
        file = load(tmp_path / "n1" / SNAPSHOT_FILE, RaftSnapshot)
        again = alone(tmp_path / "n2", "n2", THREE)
        again.take(
            1.0, "n1", InstallState(1, 1, file.last[1], 0, node.raft.snapshot.data, len(node.raft.snapshot.data))
        )
        again.settle()
        again.close()
        kept = decode_members(file.members) if file.members else Membership(THREE)
        return {node.raft.snapshot.members, kept, again.raft.members.current}

    acknowledged(2)
    node.settle()
    for _ in range(4):
        node.propose(REGULAR + b"w", lambda _answer, _fate: None)
    acknowledged(6)
    node.change(1.0, more, lambda _answer, _fate: None)
    node.settle()
    assert node.snapshots == 1
    assert found() == {Membership(THREE)}
    for _ in range(4):
        node.propose(REGULAR + b"w", lambda _answer, _fate: None)
    acknowledged(11)
    node.settle()
    assert node.snapshots == 2
    assert found() == {more}


@catches(
    Plant("whatever-was-applied-there", NODE + "_apply", "Fate.DONE if of_term == term else Fate.UNKNOWN", "Fate.DONE")
)
def test_a_command_is_not_done_because_another_one_has_its_place(tmp_path):
    """Another leader's entry comes to the index of ours, with the news that it is committed, in one go."""
    node, fates = leading_three(tmp_path / "n1"), []
    node.propose(REGULAR + b"ours", lambda _answer, fate: fates.append(fate))
    node.settle()
    theirs = [(NO_OP, 2, 2), (REGULAR + b"theirs", 3, 2)]
    node.take(1.0, "n3", AppendEntries(2, 1, 3, 1, 0, theirs))
    node.settle()
    assert node._machine.words == [b"theirs"]
    assert fates == [Fate.UNKNOWN]


@catches(
    Plant(
        "leads-at-once", NODE + "leads", "leading is not None and self.applied >= leading.began", "leading is not None"
    )
)
def test_a_leader_decides_nothing_before_it_has_what_came_before(tmp_path):
    """What was committed before may not be in its machine: it would answer from an older state."""
    node = leading_three(tmp_path / "n1")
    assert node.raft.leading is not None
    assert not node.leads
    node.take(1.0, "n2", AppendAnswer(1, 1, matched=True, index=2))
    node.settle()
    assert node.leads


@catches(
    Plant(
        "only-the-newest-members-lead",
        "controller.raft.core:Raft._may_lead",
        "{*members.current.voters, *agreed.voters}",
        "members.current.voters",
    ),
)
def test_the_leader_of_two_removes_itself_and_loses_its_power_before_the_other_hears(tmp_path):
    """With files, a restart and links that judge who is a member: the one that stays leads in the end."""
    with raft_world(tmp_path, 1, engine="dledger", nodes=2, changing=True) as world:
        for node_id in world.ids:
            world.boot(node_id)
        world.pass_time(3.0)
        world.connect(*world.ids)
        world.pass_time(3.0)
        leader, fates = world.leader(), []
        (other,) = set(world.ids) - {leader}
        word = world.propose(leader)
        world.pass_time(1.0)
        world.disconnect(leader, other)
        current = world.nodes[leader].raft.members.current
        left = replace(current, voters=(other,), places=tuple(each for each in current.places if each.node_id == other))
        node = world.nodes[leader]
        node.change(world.now, left, lambda _answer, fate: fates.append(fate))
        node.settle()
        world.crash(leader)
        world.pass_time(5.0)
        assert not world.nodes[other].leads
        world.boot(leader)
        world.connect(*world.ids)
        world.pass_time(8.0)
        assert world.nodes[other].leads
        assert world.nodes[other].roster.agreed.voters == (other,)
        assert word in world.machines[other].words
        assert fates == []
        world.propose(other, b"after")
        world.pass_time(1.0)
        assert b"after" in world.machines[other].words


def test_what_does_not_fit_together_is_refused(tmp_path):
    """A log that lost its beginning, or its end after it was applied; a state that is none."""
    node = alone(tmp_path / "n1")
    node.take(0.0, "n1", Founded(0))
    node.close()
    vote = load(tmp_path / "n1" / VOTE_FILE, Vote)
    vote.committed = 99
    save(tmp_path / "n1" / VOTE_FILE, vote)
    with pytest.raises(LocalMisuse, match="99 was committed"):
        alone(tmp_path / "n1")
    vote.committed = 1
    save(tmp_path / "n1" / VOTE_FILE, vote)
    node = alone(tmp_path / "n1")
    node._files.journal.replace([(b"\x01", 5, 1)])
    with pytest.raises(LocalMisuse, match="does not begin with entry 1"):
        alone(tmp_path / "n1")
    node.raft._work.arrived = b"no state"
    with pytest.raises(RemoteViolation, match="damaged"):
        node._take_state()


def test_a_snapshot_whose_journal_was_not_cut_yet_is_followed(tmp_path):
    """The crash came between the two: the entries behind it stay, and the ones it holds go."""
    node = alone(tmp_path / "n1")
    node.take(0.0, "n1", Founded(0))
    node.tick(0.0)
    node.tick(1.0)
    for number in range(6):
        node.propose(REGULAR + b"w%d" % number, lambda _answer, _fate: None)
    node.settle()
    journal = node._files.journal
    snapshot = RaftSnapshot(journal[3], journal[4], b"w0,w1,w2")
    node.close()
    save(tmp_path / "n1" / "snapshot", snapshot)
    again = alone(tmp_path / "n1")
    assert again._files.journal[0] == snapshot.before
    assert again.raft.log.last_index == 8
    again.tick(2.0)
    again.tick(3.0)
    again.settle()
    assert again._machine.words == [b"w%d" % number for number in range(6)]
