"""Members of a group moved message by message by a test, their disks written at once.

Invariant: nothing moves but by a call, and the same calls give the same history. Pure.
"""

from __future__ import annotations

from collections import deque

from controller.raft.core import HardState, Raft, RaftRole, RaftTimers
from controller.raft.leading import StateSnapshot
from controller.raft.log import RaftLog
from controller.raft.membership import MemberHistory, Membership
from controller.raft.messages import NO_OP

TIMERS = RaftTimers(heartbeat=0.1, election=1.0, fallback=2.0)
FIRST = (NO_OP, 1, 0)
IDS = ("a", "b", "c")


class Group:
    """Members whose messages wait until they are delivered; what a member was told to write is written at once."""

    def __init__(self, *ids, logs=None, terms=None, learners=()):
        self.now = 0.0
        self.links = {}
        self.down = set()
        self.cut = set()
        """(sender, receiver) whose messages are lost."""
        self.installed = None
        """A list: states are taken as they arrive, and who took one is in it; None: the test takes them."""
        self.applied = {each: [] for each in (*ids, *learners)}
        self.reads = []
        self.members = {}
        for number, each in enumerate((*ids, *learners)):
            entries = [FIRST, *(logs or {}).get(each, ())]
            hard = HardState((terms or {}).get(each, entries[-1][2]), None)
            history = MemberHistory(0, Membership(ids, learners))
            # The first member's timer ends first, then the second's.
            self.members[each] = Raft(
                each, TIMERS, hard, RaftLog(entries, 1), history, lambda number=number: number / 8
            )
            self.members[each].tick(self.now)

    def __getitem__(self, node_id):
        return self.members[node_id]

    def settle(self, node_id):
        raft = self.members[node_id]
        while (ready := raft.ready()) is not None:
            for peer, message in ready.early + ready.messages:
                self.links.setdefault((node_id, peer), deque()).append(message)
            self.applied[node_id] += [command for command, _, _ in ready.committed if command != NO_OP]
            raft.advance(ready)
            self.reads += ready.reads

    def deliver(self, sender=None, receiver=None):
        """Every message of these, once; those of members that are down are lost."""
        moved = False
        for (one, other), waiting in list(self.links.items()):
            if sender in (None, one) and receiver in (None, other):
                while waiting:
                    message = waiting.popleft()
                    if not {one, other} & self.down and (one, other) not in self.cut:
                        self.members[other].step(self.now, one, message)
                        self.take_state(one, other)
                        self.settle(other)
                        moved = True
        return moved

    def take_state(self, sender, receiver):
        if self.installed is not None and self.members[receiver].arrived() is not None:
            self.members[receiver].install(self.members[sender].snapshot)
            self.installed.append(receiver)

    def pass_time(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.now += 0.05
            for each in self.members:
                if each not in self.down:
                    self.members[each].tick(self.now)
                    self.settle(each)
            while self.deliver():
                pass

    def propose(self, node_id, *commands):
        for each in commands:
            assert self.members[node_id].propose(each) is not None
        self.settle(node_id)

    def waiting(self, sender, receiver):
        return list(self.links.get((sender, receiver), ()))

    def ask(self, voter, candidate, request):
        """A candidate's request at a voter, and the voter's answer."""
        self.members[voter].step(self.now, candidate, request)
        self.settle(voter)
        return self.links[voter, candidate].pop()

    def say(self, receiver, sender, message):
        """A message at a member, and its answers to the sender."""
        self.members[receiver].step(self.now, sender, message)
        self.settle(receiver)
        waiting = self.links.get((receiver, sender), deque())
        said = list(waiting)
        waiting.clear()
        return said

    @property
    def leaders(self):
        return [each for each, raft in self.members.items() if raft.role is RaftRole.LEADER and each not in self.down]


def elected(**options):
    """Three of which `a` leads."""
    group = Group(*IDS, **options)
    group.pass_time(1.2)
    assert group.leaders == ["a"]
    return group


def entries(*terms, start=2):
    return [(b"\x00%d" % index, index, term) for index, term in enumerate(terms, start)]


def snapshot_of(group, node_id):
    """Leave out of a member's log what it has applied."""
    raft = group[node_id]
    index = raft.applied
    (last,) = raft.log.entries(index, index + 1, 1)
    raft.forget(StateSnapshot(last, raft.members.at(index), b"state of %d" % index))
    return raft.snapshot
