"""Who changes the members: adds controllers, removes them, and replaces those whose disk was lost, as the command does.

Whatever it asks goes through the product's roster; a refusal is an answer. Invariant: a disk is lost only while a
majority of the voters has its files and votes, and no log has a change of the voters that is not committed: such a
change may need one more of those that are left, as a larger group does. And never has a majority of a list of peers
empty directories at once: to themselves they would be what they were on the first day.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.consensus.dledger_node import Fate
from controller.raft.membership import Membership
from remoting.protocol.errors import LocalMisuse
from tests.sim.raft.engines import TIMERS, CoreNode
from tests.sim.raft.world import World

VOTERS_WANTED = 3


class Operator:
    """One, who asks a leader now and then."""

    def __init__(self, world: World) -> None:
        self.world = world

    def may_wipe(self, node_id: str) -> bool:
        """Whether the others could go on without this one's disk, whichever members count."""
        world, (since, agreed) = self.world, self.world.judge.members.agreed
        voters = agreed.voters if since else world.founders
        left = [each for each in voters if each != node_id and each in world.started and world.votes(each)]
        known = [members for index, members in world.judge.members.known.values() if index > since]
        if self._could_found(node_id):
            return False
        return 2 * len(left) > len(voters) and all(set(each.voters) == set(voters) for each in known)

    def _could_found(self, node_id: str) -> bool:
        """Whether controllers without a vote, this one among them, are a majority of the list that one of them has."""
        world = self.world
        empty = {each for each in (*world.started, node_id) if each == node_id or not world.votes(each)}
        lists = [set(world.configured[each]) for each in empty]
        return any(2 * len(empty & each) > len(each) for each in lists)

    def add(self) -> bool:
        """A controller that is none, with an empty directory."""
        leader = self._leader()
        if leader is None:
            return False
        spare = sorted(set(self.world.ids) - set(leader.raft.members.current.members))
        if not spare:
            return False
        node_id = self.world.random.choice(spare)
        if node_id in self.world.started and not self.may_wipe(node_id):
            return False
        if node_id in self.world.started:
            self.world.wipe(node_id)
        if leader.raft.node_id in self.world.nodes:
            self.world.configured[node_id] = (*leader.raft.members.current.voters, node_id)
            self._change(leader, lambda: leader.roster.added(self.world.places[node_id]))
        self.world.boot(node_id)
        return True

    def remove(self, node_id: str = "") -> bool:
        """Any of them; the leader hands over first."""
        leader = self._leader()
        if leader is None:
            return False
        node_id = node_id or self.world.random.choice(leader.raft.members.current.members)
        if node_id == leader.raft.node_id:
            self._act(leader, lambda: leader.hand_over(self.world.now))
        else:
            since = self.world.now - TIMERS.fallback
            self._change(leader, lambda: leader.roster.removed(node_id, since))
        return True

    def mend(self) -> bool:
        """One step towards three voters with the directories that the log names; whether they are there."""
        leader = self._leader()
        if leader is None or not leader.leads or not leader.roster.idle:
            return False
        members = leader.raft.members.current
        lost = [each.node_id for each in members.places if each.identity not in ("", self._identity(each.node_id))]
        if lost:
            self.remove(lost[0])
        elif len(members.members) < VOTERS_WANTED:
            self.add()
        return not lost and not members.learners and len(members.voters) >= VOTERS_WANTED

    def _identity(self, node_id: str) -> str:
        node = self.world.nodes.get(node_id)
        return "" if node is None else node.identity

    def _leader(self) -> CoreNode | None:
        leaders = [node for _, node in sorted(self.world.nodes.items()) if node.is_leader]
        return self.world.random.choice(leaders) if leaders else None

    def _change(self, leader: CoreNode, make: Callable[[], Membership]) -> None:
        def done(_answer: object, fate: Fate) -> None:
            if fate is Fate.DONE:
                self.world.judge.members.answered(leader.raft.members.index, leader.raft.log.committed)

        def act() -> None:
            members = make()
            if leader.roster.idle:
                leader.change(self.world.now, members, done)

        self._act(leader, act)

    def _act(self, leader: CoreNode, what: Callable[[], object]) -> None:
        def act() -> None:
            try:
                what()
            except LocalMisuse:
                return
            leader.settle()

        self.world.act(leader.raft.node_id, act)
