"""Three Raft nodes, their clock, network and disks, moved by one seed.

The network is FIFO per direction, as connections are, and loses, delays and cuts; a crash forgets what a node had not
fsynced. Checked all the time: what was answered stays, every machine has applied a prefix of the same commands.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pysyncobj.syncobj
import pytest
from pysyncobj import FAIL_REASON
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from controller.consensus import raft_node
from controller.consensus.journal import Journal
from controller.consensus.messages import from_library, to_library
from controller.consensus.raft_node import RaftNode, Timers
from controller.consensus.single import REGULAR
from controller.consensus.wire import decode_message, encode_message
from controller.members import Member

IDS = ("n1", "n2", "n3")
TIMERS = Timers(0.04, 0.3, 1.0)


class Words:
    """A machine that remembers its commands in order."""

    def __init__(self) -> None:
        self.words: list[bytes] = []

    def apply(self, data: bytes) -> int:
        self.words.append(bytes(data))
        return len(self.words)

    def encode(self) -> bytes:
        return b",".join(self.words)

    def restore(self, data: bytes) -> None:
        self.words = data.split(b",") if data else []


class Wire(Transport):
    """One node's connections; what is said waits in the world's links."""

    def __init__(self, world: World, node_id: str) -> None:
        super().__init__(None, None, [])
        self.world = world
        self.own = Member(node_id, "h", 1, 1)
        self.nodes = {each: Node(each) for each in IDS}

    def send(self, node: Node, message: dict) -> bool:
        return self.say(node, from_library(message))

    def say(self, node: Node, message: object) -> bool:
        link = (self.own.node_id, node.id)
        if link not in self.world.links:
            return False
        self.world.links[link].append(encode_message(message))
        return True

    def take(self, sender: str, data: bytes) -> None:
        self._onMessageReceived(self.nodes[sender], to_library(decode_message(data)))


class ForgetfulJournal(Journal):
    """Knows how much of it would survive a power cut."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.safe = self._end

    def sync(self) -> None:
        super().sync()
        self.safe = self._end

    def cut_tail(self, place: int) -> None:
        super().cut_tail(place)
        self.safe = min(self.safe, self._end)

    def replace(self, entries: list) -> None:
        super().replace(entries)
        self.safe = self._end


class World:
    """Everything, and the clock."""

    def __init__(self, folder: Path, seed: int, *, snapshot_entries: int = 8) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.now = 100.0
        self.snapshot_entries = snapshot_entries
        self.links: dict[tuple[str, str], deque[bytes]] = {}
        self.nodes: dict[str, RaftNode] = {}
        self.wires: dict[str, Wire] = {}
        self.machines: dict[str, Words] = {}
        self.answered: set[bytes] = set()
        self.proposed = 0
        self.history: list[bytes] = []

    def boot(self, node_id: str) -> None:
        """Start a node on its directory and connect it to all that run."""
        directory = self.folder / node_id
        directory.mkdir(parents=True, exist_ok=True)
        wire, machine = Wire(self, node_id), Words()
        node = RaftNode(directory, wire, machine, TIMERS, snapshot_entries=self.snapshot_entries)
        self.nodes[node_id], self.wires[node_id], self.machines[node_id] = node, wire, machine
        for other in list(self.nodes):
            if other != node_id:
                self.connect(node_id, other)

    def crash(self, node_id: str) -> None:
        """Stop it at once; what it did not fsync is gone."""
        node = self.nodes.pop(node_id)
        for other in IDS:
            self.disconnect(node_id, other)
        journal = node._face.journal
        os.close(journal._descriptor)
        os.truncate(journal.path, journal.safe)

    def connect(self, one: str, other: str) -> None:
        """A connection of two that run."""
        if one in self.nodes and other in self.nodes and (one, other) not in self.links:
            self.links[one, other], self.links[other, one] = deque(), deque()
            for each, peer in ((one, other), (other, one)):
                self.wires[each]._onNodeConnected(self.wires[each].nodes[peer])

    def disconnect(self, one: str, other: str) -> None:
        """What is on its way is lost; both see it."""
        if self.links.pop((one, other), None) is not None:
            del self.links[other, one]
            for each, peer in ((one, other), (other, one)):
                if each in self.nodes:
                    self.wires[each]._onNodeDisconnected(self.wires[each].nodes[peer])

    def deliver(self, link: tuple[str, str]) -> bool:
        """One message of a link."""
        if not self.links.get(link):
            return False
        data = self.links[link].popleft()
        self.wires[link[1]].take(link[0], data)
        return True

    def propose(self, node_id: str, word: bytes | None = None) -> bytes:
        """Ask one node; what it answers counts for ever."""
        self.proposed += 1
        command = word or b"w%d" % self.proposed

        def done(_answer: object, reason: int) -> None:
            if reason == FAIL_REASON.SUCCESS:
                self.answered.add(command)

        self.nodes[node_id].propose(REGULAR + command, done)
        return command

    def tick(self, node_id: str) -> None:
        """Time counts for one node."""
        if node_id in self.nodes:
            self.nodes[node_id].tick()

    def pass_time(self, seconds: float) -> None:
        """Everything works and nothing is lost for a while."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.01
            for node_id in IDS:
                self.tick(node_id)
            while sum(self.deliver(link) for link in list(self.links)):
                pass
            self.check()

    def heal(self) -> None:
        """All run and are connected, and agree."""
        for node_id in IDS:
            if node_id not in self.nodes:
                self.boot(node_id)
        for one in IDS:
            for other in IDS:
                self.connect(one, other) if one != other else None
        self.pass_time(6.0)

    def read_clock(self) -> float:
        """The library has loops that end by time alone."""
        self.now += 0.00001
        return self.now

    def leader(self) -> str:
        """The one that leads."""
        (leader,) = (node_id for node_id, node in self.nodes.items() if node.leads)
        return leader

    def check(self) -> None:
        """Machines agree with each other and with all that was ever applied."""
        for node_id, machine in self.machines.items():
            if node_id not in self.nodes:
                continue
            common = min(len(machine.words), len(self.history))
            assert machine.words[:common] == self.history[:common], node_id
            if len(machine.words) > len(self.history):
                self.history = list(machine.words)

    def step(self) -> None:
        """Something happens."""
        what, chance = self.random.random(), self.random
        self.now += chance.uniform(0, 0.02)
        if what < 0.45:
            self.tick(chance.choice(IDS))
        elif what < 0.85 and self.links:
            self.deliver(chance.choice(sorted(self.links)))
        elif what < 0.95 and self.nodes:
            self.propose(chance.choice(sorted(self.nodes)))
        elif what < 0.965 and self.links:
            self.disconnect(*chance.choice(sorted(self.links)))
        elif what < 0.985:
            one, other = chance.sample(IDS, 2)
            self.connect(one, other)
        elif what < 0.99 and self.nodes:
            self.crash(chance.choice(sorted(self.nodes)))
        elif len(self.nodes) < len(IDS):
            self.boot(chance.choice(sorted(set(IDS) - set(self.nodes))))
        self.check()


@contextmanager
def raft_world(folder: Path, seed: int, **options: int) -> Iterator[World]:
    """A world whose clock is everybody's."""
    world = World(folder, seed, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pysyncobj.syncobj, "monotonicTime", world.read_clock)
        patch.setattr(raft_node, "monotonic", world.read_clock)
        patch.setattr(pysyncobj.syncobj.random, "random", world.random.random)
        patch.setattr("controller.consensus.log_face.Journal", ForgetfulJournal)
        patch.setattr(os, "fsync", lambda _descriptor: None)
        patch.setattr(os, "fdatasync", lambda _descriptor: None)
        yield world
        for node in world.nodes.values():
            node.close()


def run_schedule(folder: Path, seed: int, steps: int) -> World:
    """One random story with a good end; raises AssertionError when a rule was broken."""
    with raft_world(folder, seed, snapshot_entries=4 + seed % 13) as world:
        for node_id in IDS:
            world.boot(node_id)
        for _ in range(steps):
            world.step()
        world.heal()
        world.heal()
        last = world.propose(world.leader())
        world.pass_time(1.0)
        assert last in world.answered, "the controllers do not agree any more"
        words = world.machines[world.leader()].words
        assert world.answered <= set(words), sorted(world.answered - set(words))
        assert all(machine.words == words for machine in world.machines.values())
        return world
