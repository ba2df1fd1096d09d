"""What the library lost and this node keeps, each by the messages that lost it. Random schedules: tests/sim/raft."""

from __future__ import annotations

import shutil

import pytest

from controller.consensus.engine import ConsensusFailed
from controller.consensus.journal import RaftSnapshot, load
from controller.consensus.raft_node import NO_OP
from controller.consensus.wire import (
    Append,
    Install,
    NextIndex,
    PreVote,
    RequestVote,
    decode_message,
    to_library,
)
from controller.raft.messages import REGULAR
from remoting.protocol.errors import LocalMisuse, RemoteViolation
from tests.sim.raft.world import IDS, raft_world


@pytest.fixture
def world(tmp_path):
    """Three nodes that agree on a leader and five words, with the clock in our hands."""
    with raft_world(tmp_path, 1, snapshot_entries=1_000) as made:
        for node_id in IDS:
            made.boot(node_id)
        made.pass_time(3.0)
        for _ in range(5):
            made.propose(made.leader())
        made.pass_time(0.5)
        yield made


def follower(world):
    return next(each for each in IDS if each != world.leader())


def tell(world, to, message, sender=None):
    """A message of the leader, or another node."""
    node = world.nodes[to]
    sender = sender or world.leader()
    node._SyncObj__onMessageReceived(world.wires[to].nodes[sender], to_library(message))


def said(world, by, to):
    """The last message on a link."""
    return decode_message(world.links[by, to][-1])


def ends(world, node_id):
    return [entry[1:] for entry in world.nodes[node_id]._face[-2:]]


def test_they_agree(world):
    """Five words everywhere, one leader, and nothing but the leader takes more."""
    assert all(machine.words == [b"w1", b"w2", b"w3", b"w4", b"w5"] for machine in world.machines.values())
    reasons = []
    world.nodes[follower(world)].propose(REGULAR + b"no", lambda _answer, reason: reasons.append(reason))
    assert reasons == [4]


def test_an_old_message_cuts_nothing(world):
    """Heartbeats and entries that were overtaken leave the tail; the answer proves only what they say."""
    leader, other = world.leader(), follower(world)
    before, term = ends(world, other), world.nodes[leader].raftCurrentTerm
    entries = [tuple(entry) for entry in world.nodes[leader]._face[:]]
    place = len(entries) - 3
    tell(world, other, Append(term, 99, entries[place][1], entries[place][2], []))
    assert (ends(world, other), said(world, other, leader)) == (
        before,
        NextIndex(term, entries[place][1] + 1, False, True),
    )
    tell(world, other, Append(term, 99, entries[place][1], entries[place][2], entries[place + 1 : place + 2]))
    assert (ends(world, other), said(world, other, leader).next_index) == (before, entries[place + 1][1] + 1)


def test_the_commit_index_never_passes_what_was_proven(world):
    """The tail of this node may be of a leader that is gone."""
    leader, other = world.leader(), follower(world)
    node, term = world.nodes[other], world.nodes[leader].raftCurrentTerm
    end = node._face[-1]
    node._face.add(REGULAR + b"not committed", end[1] + 1, term)
    tell(world, other, Append(term, end[1] + 1, end[1], end[2], []))
    assert node.raftCommitIndex == end[1]


def test_a_conflict_is_cut_and_what_is_committed_never(world):
    """Entries of another term replace what differs; a leader that contradicts a committed entry ends this node."""
    leader, other = world.leader(), follower(world)
    node, term = world.nodes[other], world.nodes[leader].raftCurrentTerm
    end = node._face[-1]
    node._face.add(REGULAR + b"old", end[1] + 1, term - 1)
    node._face.add(REGULAR + b"old", end[1] + 2, term - 1)
    tell(world, other, Append(term, end[1], end[1], end[2], [(REGULAR + b"new", end[1] + 1, term)]))
    assert node._face[-1] == (REGULAR + b"new", end[1] + 1, term)
    before = node._face[-4]
    with pytest.raises(ConsensusFailed, match="is committed"):
        tell(world, other, Append(term, 1, before[1], before[2], [(b"\x00x", before[1] + 1, term + 7)]))


def test_old_terms_are_told_and_ended(world):
    """A leader of the past learns it from the answer, steps down, and an answer of the past counts for nothing."""
    leader, other = world.leader(), follower(world)
    node = world.nodes[leader]
    term, index = node.raftCurrentTerm, node._face[-1][1]
    tell(world, leader, NextIndex(term - 1, index + 50, False, True), sender=other)
    assert node._SyncObj__raftMatchIndex[world.wires[leader].nodes[other]] <= index
    tell(world, other, Append(term - 1, 0, index, term, []))
    assert said(world, other, leader) == NextIndex(term, 0, False, False)
    tell(world, leader, NextIndex(term + 3, 0, False, False), sender=other)
    assert (node._isLeader(), node.raftCurrentTerm) == (False, term + 3)


def test_who_hears_the_leader_helps_nobody_to_another(world):
    """A node that was cut off asks in vain and raises no term; without the leader the same question is granted."""
    leader, other = world.leader(), follower(world)
    asker = next(each for each in IDS if each not in (leader, other))
    index, term = world.nodes[other]._face[-1][1:]
    world.links[other, asker].clear()
    tell(world, other, PreVote(99, index, term), sender=asker)
    assert not world.links[other, asker]
    world.crash(leader)
    tell(world, other, PreVote(99, index - 1, term), sender=asker)
    assert not world.links[other, asker]
    tell(world, other, PreVote(99, index, term), sender=asker)
    assert world.links[other, asker]
    world.pass_time(2.0)
    assert world.leader() != leader


def test_who_waits_when_a_leadership_ends_is_told(world):
    """At once: its command may or may not be committed by another leader."""
    leader, other, reasons = world.leader(), follower(world), []
    world.nodes[leader].propose(REGULAR + b"x", lambda _answer, reason: reasons.append(reason))
    world.tick(leader)
    tell(world, leader, NextIndex(world.nodes[leader].raftCurrentTerm + 1, 0, False, False), sender=other)
    assert reasons == [7]


def test_two_that_ask_each_other_do_not_both_stand(world):
    """Equal logs at the same moment: the lower id wins, the other one waits, and the vote is not split."""
    leader = world.leader()
    low, high = (each for each in IDS if each != leader)
    world.crash(leader)
    for each in (low, high):
        world.nodes[each]._SyncObj__raftElectionDeadline = 0.0
        world.tick(each)
    term = world.nodes[low].raftCurrentTerm
    while sum(world.deliver(link) for link in list(world.links)):
        world.tick(low)
        world.tick(high)
    assert world.leader() == low
    assert world.nodes[low].raftCurrentTerm == term + 1


def test_a_leader_that_nobody_follows_stops_to_lead(world):
    """Soon, so that nothing stale is read from it."""
    leader = world.leader()
    for each in IDS:
        world.disconnect(leader, each)
    world.pass_time(1.5)
    assert not world.nodes[leader]._isLeader()
    assert world.leader() != leader


def test_who_is_left_alone_knows_no_leader(world):
    """At once: it must neither say that it is ready nor send anybody to a controller that is gone."""
    leader, other = world.leader(), follower(world)
    assert world.nodes[other].leader_id == leader
    for each in IDS:
        world.disconnect(other, each)
    assert world.nodes[other].leader_id is None
    world.pass_time(1.0)
    world.heal()
    assert world.nodes[other].leader_id == world.leader()


def test_a_wiped_node_votes_for_no_log_it_cannot_judge(world):
    """Together with a node that lags it must not elect a log without what was answered."""
    leader, wiped = world.leader(), follower(world)
    lagging = next(each for each in IDS if each not in (leader, wiped))
    for each in IDS:
        world.disconnect(lagging, each)
    word = world.propose(leader)
    world.pass_time(0.5)
    assert word in world.answered
    world.crash(leader)
    world.wipe(wiped)
    world.boot(wiped)
    world.pass_time(5.0)
    assert not any(node._isLeader() for node in world.nodes.values())
    tell(world, wiped, RequestVote(99, 5, 1), sender=lagging)
    assert world.nodes[wiped].raftCurrentTerm < 99
    world.heal()
    assert all(word in machine.words for machine in world.machines.values())
    assert world.nodes[wiped]._face.voter


def test_a_follower_with_a_conflict_catches_up_by_many_batches(tmp_path):
    """Its answers to the later batches must not undo the leader's way back to what both have."""
    with raft_world(tmp_path, 3, snapshot_entries=1_000, batch_bytes=30) as world:
        for node_id in IDS:
            world.boot(node_id)
        world.pass_time(3.0)
        old = world.leader()
        for node_id in IDS:
            world.disconnect(old, node_id)
        for _ in range(20):
            world.propose(old)
        world.tick(old)
        world.pass_time(3.0)
        for _ in range(60):
            world.propose(world.leader())
        world.pass_time(1.0)
        assert world.nodes[old]._face[-1][1] > 20
        for node_id in IDS:
            world.connect(old, node_id) if node_id != old else None
        world.pass_time(3.0)
        assert len(world.machines[old].words) == 60


def compacted(world):
    """The leader cut its log behind a snapshot."""
    leader = world.leader()
    world.nodes[leader].forceLogCompaction()
    world.tick(leader)
    assert world.nodes[leader].log_entries == 2
    return leader


def test_a_crash_between_snapshot_and_cut_loses_nothing(world, tmp_path):
    """The snapshot is found beside the whole journal, whose tail stays."""
    leader = compacted(world)
    snapshot = load(tmp_path / leader / "snapshot", RaftSnapshot)
    other = follower(world)
    words = list(world.machines[other].words)
    world.propose(leader)
    world.pass_time(0.5)
    last = world.nodes[other]._face[-1]
    world.crash(other)
    shutil.copy(tmp_path / leader / "snapshot", tmp_path / other / "snapshot")
    world.boot(other)
    assert world.nodes[other]._face[-1] == last
    assert world.nodes[other].raftLastApplied == snapshot.last[1]
    assert world.machines[other].words == words


def test_a_snapshot_keeps_the_tail_behind_it(world):
    """Late and unwanted it changes nothing; wanted it is installed, in pieces, and checked first."""
    leader = compacted(world)
    other = follower(world)
    term = world.nodes[leader].raftCurrentTerm
    data = (world.folder / leader / "snapshot").read_bytes()
    world.propose(leader)
    world.pass_time(0.5)
    before = ends(world, other)
    tell(world, other, Install(term, 99, data, True, True))
    assert (ends(world, other), said(world, other, leader).success) == (before, True)
    world.wipe(other)
    world.boot(other)
    with pytest.raises(RemoteViolation, match="damaged"):
        tell(world, other, Install(term, 0, data[:-1] + b"?", True, True))
    for at in range(0, len(data), 7):
        tell(world, other, Install(term, 0, data[at : at + 7], at == 0, False))
    tell(world, other, Install(term, 0, b"", False, True))
    assert world.machines[other].words == [b"w1", b"w2", b"w3", b"w4", b"w5"]
    world.heal()
    assert len(world.machines[other].words) == 6


def test_a_wiped_node_catches_up_by_a_snapshot(world):
    """Over the wire, from a leader that has cut its log."""
    compacted(world)
    other = follower(world)
    world.wipe(other)
    world.heal()
    assert len(world.machines[other].words) == 5


def test_a_snapshot_whose_connection_broke_begins_anew(tmp_path):
    """A new connection must not get the rest of what the old one began: it would be damaged at the other end."""
    with raft_world(tmp_path, 1, snapshot_entries=1_000, piece_bytes=4, look_seconds=0.005) as world:
        for node_id in IDS:
            world.boot(node_id)
        world.pass_time(3.0)
        for _ in range(5):
            world.propose(world.leader())
        world.pass_time(1.0)
        leader, other = compacted(world), follower(world)
        world.wipe(other)
        world.boot(other)
        while not any(isinstance(decode_message(each), Install) for each in world.links[leader, other]):
            world.tick(leader)
            while world.deliver((other, leader)):
                pass
            if not any(isinstance(decode_message(each), Install) for each in world.links[leader, other]):
                world.deliver((leader, other))
        assert not any(decode_message(each).last for each in world.links[leader, other])
        world.disconnect(leader, other)
        world.connect(leader, other)
        world.pass_time(3.0)
        assert world.machines[other].words == world.machines[leader].words


def test_a_leader_whose_only_follower_receives_a_long_snapshot_goes_on(tmp_path):
    """Every piece is answered: without that it would step down, and the next leader would restart the snapshot."""
    with raft_world(tmp_path, 1, snapshot_entries=1_000, piece_bytes=4, look_seconds=0.005) as world:
        for node_id in IDS:
            world.boot(node_id)
        world.pass_time(3.0)
        leader, other = world.leader(), follower(world)
        third = next(each for each in IDS if each not in (leader, other))
        world.crash(other)
        for _ in range(200):
            world.propose(leader)
        world.pass_time(20.0)
        compacted(world)
        world.crash(third)
        world.boot(other)
        term = world.nodes[leader].raftCurrentTerm
        world.pass_time(20.0)
        assert len(world.machines[other].words) == 200
        assert (world.leader(), world.nodes[leader].raftCurrentTerm) == (leader, term)


def test_a_journal_without_its_snapshot_is_refused(world):
    """Its first entries are nowhere."""
    leader = compacted(world)
    world.crash(leader)
    (world.folder / leader / "snapshot").unlink()
    with pytest.raises(LocalMisuse, match="does not begin with entry 1"):
        world.boot(leader)


def test_a_barrier_is_an_entry_without_content(world):
    """It is answered when it is committed and no machine sees it."""
    leader, reasons = world.leader(), []
    world.nodes[leader].propose(NO_OP, lambda _answer, reason: reasons.append(reason))
    world.pass_time(0.5)
    assert reasons == [0]
    assert len(world.machines[leader].words) == 5
