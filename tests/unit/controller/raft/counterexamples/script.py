"""A group whose history a test writes by hand: who hears what, whose power fails when, and whether they still agree.

    script = Script("a", "b", "c")
    script.elect("a", "c")          it stands, and of the others only c hears of it
    script.pass_on("a", "b")        what a has sent to b arrives, and b's answers at a
    script.restart("b")             from its disk; messages on their way stay on their way

Each member has a disk of its own. Invariants, after every step: one leader a term; an index has one committed entry,
whoever says so; who is elected has everything that was committed. `AssertionError` says which of them was broken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from controller.raft.core import HardState, Raft, RaftRole
from controller.raft.leading import StateSnapshot
from controller.raft.log import RaftLog
from controller.raft.membership import MemberHistory, Membership
from controller.raft.messages import REGULAR, StandNow, Voted
from remoting.protocol.voting import VoteAnswer
from tests.unit.controller.raft.group import FIRST, TIMERS, Group


@dataclass
class Disk:
    """What a member finds when it starts again."""

    hard: HardState
    members: Membership
    since: int = 0
    """The entry that made those the members."""
    entries: list = field(default_factory=lambda: [FIRST])

    def write(self, ready):
        if ready.hard is not None:
            self.hard = ready.hard
        if ready.snapshot is not None:
            state = ready.snapshot
            follows = state.last in self.entries
            behind = [each for each in self.entries if follows and each[1] > state.index]
            self.entries, self.members, self.since = [state.last, *behind], state.members, state.index
        if ready.cut_from:
            self.entries = [each for each in self.entries if each[1] < ready.cut_from]
        self.entries += ready.entries


class Script(Group):
    """Members whose every message, write and power cut is one line of a test."""

    def __init__(self, *ids, learners=(), **options):
        self.disks = {}
        self.agreed = {}
        """Index -> the entry that was committed there first, and by whom."""
        self.led = {}
        """Term -> its leader."""
        self.failing = set()
        """Members whose power fails before their next write."""
        super().__init__(*ids, learners=learners, **options)
        self.first = Membership(ids, learners)
        for each, raft in self.members.items():
            kept = raft.log.entries(raft.log.first_index, raft.log.last_index + 1, 1 << 30)
            self.disks[each] = Disk(raft.hard, self.first, entries=kept)

    # ---- what happens

    def settle(self, node_id):
        raft, disk = self.members[node_id], self.disks[node_id]
        while (ready := raft.ready()) is not None:
            self._post(node_id, ready.early)
            if node_id in self.failing:
                self.failing.remove(node_id)
                self.restart(node_id)
                return
            disk.write(ready)
            self._post(node_id, ready.messages)
            for entry in ready.committed:
                self._commits(node_id, entry)
            self.applied[node_id] += [command for command, _, _ in ready.committed if command[:1] == REGULAR]
            raft.advance(ready)
            self.reads += ready.reads
            self._leads(node_id)

    def stand(self, node_id):
        """It stands for election as if its leader had asked for it; its requests wait to be passed on."""
        self[node_id].step(self.now, "", StandNow(self[node_id].hard.term))
        self.settle(node_id)

    def elect(self, node_id, *voters):
        """Of the others only these hear that it stands, and only that; it has heard of their terms."""
        term = max(self[each].hard.term for each in (node_id, *voters))
        if term > self[node_id].hard.term:
            self[node_id].step(self.now, voters[0], Voted(term, VoteAnswer.REJECT_EXPIRED_VOTE_TERM))
            self.settle(node_id)
        self.stand(node_id)
        asked = {each: self.lose(node_id, each) for each in self.members if each != node_id}
        for each in voters:
            for message in asked[each]:
                self[each].step(self.now, node_id, message)
            self.settle(each)
            self.deliver(each, node_id)
        assert self.leaders.count(node_id) == 1, f"{node_id} is not elected"

    def pass_on(self, sender, receiver, *, answered=True):
        """What one has sent arrives, then the answers; until nothing more comes of it."""
        while self.deliver(sender, receiver):
            if not (answered and self.deliver(receiver, sender)):
                return

    def lose(self, sender, receiver):
        """What is on its way from one to the other never arrives; the test may deliver it later."""
        waiting = self.links.pop((sender, receiver), deque())
        return list(waiting)

    def take(self, receiver, sender, *messages):
        """Messages that were lost or are late arrive after all."""
        for each in messages:
            self[receiver].step(self.now, sender, each)
            self.settle(receiver)

    def alone(self, *ids):
        """From now on these and the others hear nothing of each other."""
        rest = set(self.members) - set(ids)
        self.cut = {pair for one in ids for other in rest for pair in ((one, other), (other, one))}
        self.links.clear()

    def together(self):
        """Everybody hears everybody again, and the connections are new."""
        self.cut = set()
        self.links.clear()
        for one in self.members:
            for other in self.members:
                if one != other:
                    self[one].connected(self.now, other, connected=True)

    def restart(self, node_id, *, emptied=False):
        """Its power fails and comes back; `emptied`: its files are gone."""
        old = self.members[node_id]
        if emptied:
            self.disks[node_id] = Disk(HardState(0, None), self.first)
        disk = self.disks[node_id]
        history = MemberHistory(disk.since, disk.members)
        for entry in disk.entries[1:]:
            history.appended(entry)
        log = RaftLog(disk.entries, disk.entries[0][1])
        raft = Raft(node_id, TIMERS, disk.hard, log, history, old._election.random)
        raft.admitted = not emptied
        self.members[node_id] = raft
        self.applied[node_id] = []
        raft.tick(self.now)

    def compact(self, node_id):
        """Leave out of a member's log what it has applied; its state says the rest."""
        raft = self[node_id]
        index = raft.applied
        (last,) = raft.log.entries(index, index + 1, 1)
        raft.forget(StateSnapshot(last, raft.members.at(index), b"state of %d" % index))

    def become(self, node_id, voters, learners=()):
        """The leader makes these the members."""
        self[node_id].change(self.now, Membership(tuple(voters), tuple(learners)))
        self.settle(node_id)

    # ---- whether they agree

    def _post(self, sender, messages):
        for receiver, message in messages:
            self.links.setdefault((sender, receiver), deque()).append(message)

    def _commits(self, node_id, entry):
        first, who = self.agreed.setdefault(entry[1], (entry, node_id))
        assert first == entry, f"{who} committed {first}, and {node_id} {entry}"

    def _leads(self, node_id):
        raft = self[node_id]
        if raft.role is not RaftRole.LEADER:
            return
        term, log = raft.hard.term, raft.log
        other = self.led.get(term)
        assert other in (None, node_id), f"{other} and {node_id} both lead term {term}"
        if other is None:
            self.led[term] = node_id
            here = [each for each in self.agreed.values() if each[0][1] > log.first_index]
            lacking = [each for each in here if log.term(each[0][1]) != each[0][2]]
            assert not lacking, f"{node_id} leads term {term} without what is committed: {lacking}"
