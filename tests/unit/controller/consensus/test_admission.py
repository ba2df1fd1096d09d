"""When a controller with an empty directory may vote: the rules alone, and what goes wrong without each of them."""

from __future__ import annotations

import shutil

import pytest

from controller.consensus.admission import Admission
from controller.consensus.wire import JoinReply
from tests.sim.raft.checkers import Judge
from tests.sim.raft.world import IDS, raft_world

ROUND_SECONDS = 0.3


def reply(number, *, term=0, voter=False, index=1, last_term=0):
    return JoinReply(term, number, voter, index, last_term)


def five():
    """The newcomer n1 of five, in its first round."""
    admission = Admission(("n2", "n3", "n4", "n5"), ROUND_SECONDS)
    return admission, admission.begin(0.0)


# ---- the rules alone


def test_a_majority_of_newcomers_founds_when_all_answered_or_the_round_is_over():
    """They are those who answered; one that is away is waited for as long as the round lasts."""
    admission, number = five()
    admission.answered("n2", reply(number))
    assert admission.founders(ROUND_SECONDS, 1) == ()
    admission.answered("n3", reply(number))
    assert admission.founders(0.0, 1) == ()
    assert admission.founders(ROUND_SECONDS, 1) == ("n2", "n3")
    admission.answered("n4", reply(number, voter=True))
    admission.answered("n5", reply(number, voter=True))
    assert admission.founders(0.0, 1) == ("n2", "n3")


def test_answers_to_an_earlier_round_found_nothing():
    """Who answered then may have joined since, and the newcomers of now have lost their disks."""
    admission, number = five()
    admission.answered("n2", reply(number))
    assert admission.begin(0.0) == number + 1
    admission.answered("n3", reply(number + 1))
    admission.answered("n4", reply(number))
    assert admission.founders(ROUND_SECONDS, 1) == ()
    admission.answered("n4", reply(number + 1))
    assert admission.founders(ROUND_SECONDS, 1) == ("n3", "n4")


@pytest.mark.parametrize("holder", ["n5", None])
def test_nothing_is_founded_beside_entries(holder):
    """A controller that has some, or this one itself: a leader was elected, so the newcomers lost their disks."""
    admission, number = five()
    for each in ("n2", "n3", "n4", "n5"):
        admission.answered(each, reply(number, term=3, index=9 if each == holder else 1, last_term=2))
    assert admission.founders(ROUND_SECONDS, 1 if holder else 2) == ()


def test_a_newcomer_joins_when_all_answered_and_under_no_older_term():
    """One that is away may be a candidate with a vote of this controller, from before it lost its disk."""
    admission, number = five()
    for each in ("n2", "n3", "n4"):
        admission.answered(each, reply(number, term=4, voter=True, index=9, last_term=4))
    assert (admission.missing, admission.may_join(9)) == (("n5",), False)
    admission.answered("n5", reply(number, term=6, voter=True, index=8, last_term=4))
    assert (admission.missing, admission.may_join(5), admission.may_join(6)) == ((), False, True)


def test_a_newcomer_does_not_join_a_minority():
    """Too few voters are left to know what was agreed on."""
    admission, number = five()
    for each in ("n2", "n3", "n4", "n5"):
        admission.answered(each, reply(number, voter=each in ("n4", "n5")))
    assert not admission.may_join(1)


def test_what_keeps_a_newcomer_out_is_told():
    """A controller to start; what is still to come; the remedy when most disks were lost, with the one to copy."""
    admission, number = five()
    assert "before it has reached n2, n3, n4, n5, so" in admission.obstacle()
    for each in ("n2", "n3", "n4", "n5"):
        admission.answered(each, reply(number, term=3, voter=True, index=9, last_term=2))
    assert "as soon as it has received" in admission.obstacle()
    admission.answered("n2", reply(number, term=3))
    admission.answered("n3", reply(number, term=3))
    admission.answered("n4", reply(number, term=3, voter=True, index=8, last_term=3))
    assert admission.holders == ("n4", "n5")
    assert "n4, n5 has entries: stop all controllers, copy the consensus directory of n4" in admission.obstacle()


# ---- the rules in the nodes


def agreed(world):
    """All run, agree on a leader and have its first entries."""
    for node_id in world.ids:
        world.boot(node_id)
    world.pass_time(3.0)
    for _ in range(3):
        world.propose(world.leader())
    world.pass_time(0.5)
    assert all(node.votes for node in world.nodes.values())


def cut_off(world, node_id):
    for other in world.ids:
        if other != node_id:
            world.disconnect(node_id, other)


def quantum_of(world, node_ids):
    """A moment in which only these nodes work; what is on its way to the others waits."""
    world.now += 0.01
    for node_id in node_ids:
        world.tick(node_id)
    while sum(world.deliver(link) for link in list(world.links) if link[1] in node_ids):
        pass


def succeeded(world):
    """Of three, a leader that was replaced and does not know it, its successor, and the one that follows that.

    The successor committed a word that the former leader does not have.
    """
    agreed(world)
    former = world.leader()
    others = tuple(each for each in IDS if each != former)
    cut_off(world, former)
    while not any(world.nodes[each].leads for each in others):
        quantum_of(world, others)
    successor = next(each for each in others if world.nodes[each].leads)
    word = world.propose(successor)
    while word not in world.answered:
        quantum_of(world, others)
    assert world.nodes[former]._isLeader()
    return former, successor, next(each for each in others if each != successor)


def test_a_wiped_follower_acknowledges_nothing_to_a_leader_it_had_left(tmp_path):
    """The former leader would commit entries that contradict its successor's."""
    with raft_world(tmp_path, 1) as world:
        former, successor, follower = succeeded(world)
        cut_off(world, successor)
        world.wipe(follower)
        world.boot(follower)
        world.disconnect(follower, successor)
        committed = world.nodes[former].raftCommitIndex
        world.propose(former)
        for _ in range(20):
            quantum_of(world, (former, follower))
        assert world.nodes[former].raftCommitIndex == committed
        assert world.nodes[follower]._face[-1] == world.nodes[former]._face[-1]
        world.heal()
        assert all(set(machine.words) >= world.answered for machine in world.machines.values())


def test_a_wiped_follower_does_not_join_a_leader_it_had_left(tmp_path):
    """It has all that the former leader committed, and with it would elect a log without the successor's entry."""
    with raft_world(tmp_path, 1) as world:
        former, successor, follower = succeeded(world)
        world.wipe(follower)
        world.boot(follower)
        world.disconnect(former, successor)
        world.tick(follower)
        world.deliver((follower, successor))
        world.deliver((successor, follower))
        world.disconnect(follower, successor)
        for _ in range(20):
            quantum_of(world, (former, follower))
        node = world.nodes[follower]
        assert node._admission.missing == ()
        assert (node.raftCommitIndex, node.votes) == (world.nodes[former].raftCommitIndex, False)
        world.heal()
        assert all(node.votes for node in world.nodes.values())


def test_a_wiped_node_does_not_stand_for_election(tmp_path):
    """Its log may be as long as that of a node that lags, and lack what both do not have."""
    with raft_world(tmp_path, 1) as world:
        agreed(world)
        leader = world.leader()
        wiped, lagging = (each for each in IDS if each != leader)  # of two that ask, the lower id is preferred
        cut_off(world, lagging)
        word = world.propose(leader)
        world.pass_time(0.3)
        assert word in world.answered
        world.crash(leader)
        world.wipe(wiped)
        world.boot(wiped)
        for entry in world.nodes[lagging]._face[1:]:
            world.nodes[wiped]._face.add(*entry)
        world.pass_time(5.0)
        assert not any(node._isLeader() for node in world.nodes.values())
        world.heal()
        assert all(word in machine.words for machine in world.machines.values())


def test_what_a_follower_acknowledged_before_it_was_wiped_is_not_counted(tmp_path):
    """The entry is on the disks of two of five: three others could elect a leader without it."""
    with raft_world(tmp_path, 1, nodes=5) as world:
        agreed(world)
        leader = world.leader()
        wiped, other = [each for each in world.ids if each != leader][:2]
        cut_off(world, leader)
        world.connect(leader, wiped)
        world.propose(leader)
        for _ in range(5):
            quantum_of(world, (leader, wiped))
        end = world.nodes[leader]._face[-1]
        assert world.nodes[wiped]._face[-1] == end
        world.wipe(wiped)
        world.boot(wiped)
        world.connect(leader, other)
        for _ in range(10):
            quantum_of(world, (leader, other))
        assert world.nodes[other]._face[-1] == end
        assert world.nodes[leader].raftCommitIndex == end[1] - 1


def test_a_wiped_follower_does_not_join_while_a_candidate_may_hold_its_vote(tmp_path):
    """The candidate wins with it later, and lacks what the leader committed with the same follower's help."""
    with raft_world(tmp_path, 1, nodes=5) as world:
        agreed(world)
        leader = world.leader()
        candidate, wiped, helper, voter = (each for each in world.ids if each != leader)
        cut_off(world, candidate)
        world.connect(candidate, wiped)
        world.connect(candidate, voter)
        world.nodes[candidate]._SyncObj__raftElectionDeadline = 0.0
        world.nodes[candidate]._canvass.begin()
        for each in (helper, voter):
            world.nodes[candidate]._canvass.granted(each)
        world.tick(candidate)
        while world.deliver((candidate, wiped)) or world.deliver((wiped, candidate)):
            pass
        world.wipe(wiped)
        world.boot(wiped)
        world.disconnect(candidate, wiped)
        world.tick(wiped)
        while world.deliver((wiped, voter)) or world.deliver((voter, wiped)):
            pass
        for each in (leader, wiped, helper):
            world.disconnect(voter, each)
        world.propose(leader)
        for _ in range(20):
            quantum_of(world, (leader, wiped, helper))
        assert world.nodes[wiped]._admission.missing == (candidate,)
        assert (world.nodes[wiped].votes, world.answered) == (False, {b"w1", b"w2", b"w3"})
        world.deliver((candidate, voter))
        world.deliver((voter, candidate))
        world.heal()
        assert all(node.votes for node in world.nodes.values())


def test_a_first_start_that_was_interrupted_is_gone_on_with(tmp_path):
    """Only two of five learned that all may vote: they elect no leader alone; the others found the cluster again."""
    with raft_world(tmp_path, 5, nodes=5) as world:
        for node_id in ("n1", "n5", "n2"):
            world.boot(node_id)
            if node_id != "n2":
                world.nodes[node_id]._face.become_voter()
        world.pass_time(3.0)
        assert not any(node._isLeader() for node in world.nodes.values())
        world.heal()
        assert world.nodes[world.leader()].votes
        assert all(node.votes for node in world.nodes.values())


def test_voters_without_entries_elect_a_leader_when_the_founder_was_wiped(tmp_path):
    """Nothing was committed yet; a majority that votes and never lost a disk needs no entry to go on."""
    with raft_world(tmp_path, 6) as world:
        for node_id in IDS:
            world.boot(node_id)
        for node_id in ("n2", "n3"):
            world.nodes[node_id]._face.become_voter()
        world.pass_time(5.0)
        assert world.leader() in ("n2", "n3")
        assert all(node.votes for node in world.nodes.values())


def test_a_voter_without_entries_and_a_wiped_node_elect_nobody(tmp_path):
    """The third may have agreed on something with the wiped one."""
    with raft_world(tmp_path, 6) as world:
        for node_id in ("n1", "n2"):
            world.boot(node_id)
        world.nodes["n2"]._face.become_voter()
        world.pass_time(5.0)
        assert not any(node._isLeader() for node in world.nodes.values())
        assert "before it has reached n3," in world.nodes["n1"].obstacle
        world.heal()
        assert all(node.votes for node in world.nodes.values())


def test_two_wiped_of_three_wait_for_an_operator_who_copies_the_third(tmp_path):
    """The third may lack decisions of the other two, so no node continues by itself without their data."""
    with raft_world(tmp_path, 1) as world:
        agreed(world)
        kept, *lost = sorted(IDS, key=world.leader().__ne__)
        for node_id in lost:
            world.wipe(node_id)
        for node_id in lost:
            world.boot(node_id)
        world.pass_time(5.0)
        assert not any(node._isLeader() for node in world.nodes.values())
        remedy = (
            f"a majority of the controllers lost its files, and {kept} has entries: stop all controllers, copy the "
            f"consensus directory of {kept} to every other one and delete the file vote in each"
        )
        assert {world.nodes[each].obstacle for each in lost} == {remedy}
        for node_id in IDS:
            world.crash(node_id)
        for node_id in lost:
            shutil.copytree(tmp_path / kept, tmp_path / node_id, dirs_exist_ok=True)
        for node_id in IDS:
            (tmp_path / node_id / "vote").unlink()
        world.judge = Judge()
        world.heal()
        assert all(machine.words == [b"w1", b"w2", b"w3"] for machine in world.machines.values())
