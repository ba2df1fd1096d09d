"""Raft nodes, their clock, network and disks, moved by one seed or by a test's own hand.

The nodes are the product's (`RaftNode`, `DledgerNode`) on real files; network, disk and time are models. Rules are
judged after everything a node does.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller.consensus import raft_node
from controller.consensus.engine import VOTE_FILE
from controller.consensus.journal import Entry, Journal, RaftSnapshot, Vote, load
from controller.consensus.links import REFUSED_PAUSE_SECONDS
from controller.raft.membership import MemberPlace
from controller.raft.messages import REGULAR
from tests.sim.raft.checkers import Judge
from tests.sim.raft.disk import Disk, PowerCut
from tests.sim.raft.engines import ENGINES
from tests.sim.raft.machines import Words
from tests.sim.raft.network import Link, Network

IDS = ("n1", "n2", "n3")
QUANTUM_SECONDS = 0.01
FOUNDERS = 3


@dataclass(frozen=True)
class Sizes:
    """How a world is built."""

    nodes: int = 3
    snapshot_entries: int = 8
    batch_bytes: int = raft_node.BATCH_BYTES
    piece_bytes: int = raft_node.PIECE_BYTES
    look_seconds: float = 0.00001
    """Time that a node takes between two readings of its clock."""
    machine: Callable[[], Any] = Words
    engine: str = "pysyncobj"
    changing: bool = False
    """Whether the members change: three found the group, directories have identities, and links judge them."""


class World:
    """Everything, and the clock."""

    def __init__(self, folder: Path, seed: int, sizes: Sizes) -> None:
        self.folder = folder.resolve()
        self.sizes = sizes
        self.ids = tuple(f"n{each + 1}" for each in range(sizes.nodes))
        self.founders = self.ids[:FOUNDERS] if sizes.changing else self.ids
        self.configured = dict.fromkeys(self.ids, self.founders)
        """Whom each is told of when it starts."""
        self.places = {each: MemberPlace(each, each, 1, number + 1) for number, each in enumerate(self.ids)}
        self.started: set[str] = set()
        """Nodes that have a directory."""
        self._identities = 0
        self._turned_away: dict[frozenset[str], float] = {}
        """When two ended their connection because of who one of them is."""
        self.random = random.Random(seed)
        self.now = 100.0
        self.judge = Judge()
        self.network = Network()
        self.disk = Disk(self.random)
        self.engine = ENGINES[sizes.engine]
        self.nodes: dict[str, Any] = {}
        self.machines: dict[str, Any] = {}
        self.journals: dict[str, Journal] = {}
        self.paused: dict[str, float] = {}
        """Nodes that do nothing before this time."""
        self.answered: set[bytes] = set()
        self.proposed = 0
        self.cuts = 0
        """Crashes in the middle of something."""
        self.trace: Callable[[str], object] = lambda _line: None
        """Called with every line of the history."""
        self._history = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Of everything that happened so far: two runs of a seed have the same."""
        return self._history.hexdigest()

    def note(self, *what: object) -> None:
        """Add an event to the history."""
        line = f"{self.now!r} {' '.join(str(each) for each in what)}"
        self._history.update(line.encode() + b"\n")
        self.trace(line)

    @property
    def links(self) -> dict[Link, Any]:
        """What is on its way."""
        return self.network.links

    @property
    def wires(self) -> dict[str, Any]:
        """The nodes' ends of it."""
        return self.network.wires

    def boot(self, node_id: str) -> None:
        """Start a node on its directory and connect it to all that run."""
        self.note("boot", node_id)
        self.started.add(node_id)
        directory = self.folder / node_id
        directory.mkdir(parents=True, exist_ok=True)
        wire, machine = self.engine.wire(self, node_id), self.sizes.machine()
        try:
            node = self.engine.node(self, directory, wire, machine)
        except PowerCut:
            self._cut_off(node_id)
            return
        wire.on_say = lambda message, peer: self.judge.said(node_id, node, message, peer)
        self.nodes[node_id], self.wires[node_id], self.machines[node_id] = node, wire, machine
        self.judge.booted(node_id, node)
        self.judge.look(node_id, node, machine)
        for other in list(self.nodes):
            if other != node_id:
                self.connect(node_id, other)

    def crash(self, node_id: str) -> None:
        """Stop it at once; data without fsync may be lost."""
        self.note("crash", node_id)
        self.paused.pop(node_id, None)
        del self.nodes[node_id]
        self.network.leave(node_id)
        self._cut_off(node_id)

    def wipe(self, node_id: str) -> None:
        """Replace a node's disk by an empty one; it is down then."""
        if node_id in self.nodes:
            self.crash(node_id)
        self.note("wipe", node_id)
        self.disk.wipe(self.folder / node_id)
        self.judge.wiped(node_id)

    def votes(self, node_id: str) -> bool:
        """Whether a node votes, or would if it ran."""
        if node_id in self.nodes:
            return self.nodes[node_id].votes
        vote = load(self.folder / node_id / VOTE_FILE, Vote)
        return vote is not None and vote.voter

    def act(self, node_id: str, what: Callable[[], object]) -> None:
        """Something that a node does, to which its power may be cut."""
        try:
            what()
        except PowerCut:
            self.cuts += 1
            self.note("power cut", node_id)
            self.crash(node_id)
        else:
            node = self.nodes[node_id]
            place = (node.term, node.voted_for, node.journal[-1][1:], node.committed)
            self.note(node_id, *place, node.votes, node.is_leader)
            self.judge.look(node_id, node, self.machines[node_id])

    def who(self, node_id: str) -> dict[str, Any]:
        """Places, and the identity of a directory that has none yet."""
        if not self.sizes.changing:
            return {}
        self._identities += 1
        known = {each: self.places[each] for each in self.configured[node_id]}
        return {"places": known, "identity": f"{node_id}-{self._identities}"}

    def turned_away(self, one: str, other: str) -> None:
        """They try again, but not at once."""
        self._turned_away[frozenset((one, other))] = self.now

    def connect(self, one: str, other: str) -> None:
        """A connection of two that run."""
        if self.now - self._turned_away.get(frozenset((one, other)), 0.0) < REFUSED_PAUSE_SECONDS:
            return
        self.note("connect", one, other)
        self.network.connect(one, other)

    def disconnect(self, one: str, other: str) -> None:
        """What is on its way is lost; both see it."""
        self.note("disconnect", one, other)
        self.network.disconnect(one, other)

    def deliver(self, link: Link) -> bool:
        """One message of a link."""
        if not self.links.get(link):
            return False
        data = self.links[link].popleft()
        self.note("deliver", *link, self.engine.decode(data))
        self.act(link[1], lambda: self.wires[link[1]].take(link[0], data))
        return True

    def propose(self, node_id: str, word: bytes | None = None) -> bytes:
        """Ask one node; its answer must remain true."""
        self.proposed += 1
        command = word or b"w%d" % self.proposed

        def done(_answer: object, granted: bool) -> None:
            if granted:
                self.answered.add(command)

        self.nodes[node_id].ask(REGULAR + command, done)
        return command

    def tick(self, node_id: str) -> None:
        """Time counts for one node."""
        if node_id in self.nodes:
            self.act(node_id, self.nodes[node_id].tick)

    def pass_time(self, seconds: float) -> None:
        """Everything works and nothing is lost for a while."""
        end = self.now + seconds
        while self.now < end:
            self.quantum()

    def quantum(self) -> None:
        """Everything that is there does what it can."""
        self.now += QUANTUM_SECONDS
        for node_id in self.ids:
            self.tick(node_id)
        while sum(self.deliver(link) for link in list(self.links)):
            pass

    def start_all(self) -> None:
        """All run and are connected."""
        self.paused.clear()
        self.network.slow.clear()
        for node_id in sorted(self.started) if self.sizes.changing else self.ids:
            while node_id not in self.nodes:
                self.boot(node_id)
        for one in self.ids:
            for other in self.ids:
                self.connect(one, other) if one != other else None

    def heal(self) -> None:
        """All run and are connected, and have time to agree."""
        self.start_all()
        self.pass_time(6.0)

    def read_clock(self) -> float:
        """The library has loops that end by time alone."""
        self.now += self.sizes.look_seconds
        return self.now

    def leader(self) -> str:
        """The one that leads."""
        (leader,) = (node_id for node_id, node in self.nodes.items() if node.leads)
        return leader

    def watched(self) -> type[Journal]:
        """The product's journal, whose entries are judged."""
        return type("WatchedJournal", (_WatchedJournal,), {"world": self})

    def judged(self, save: Callable[..., None]) -> Callable[..., None]:
        """The product's way to write a small file, its snapshots judged."""

        def judged(path: Path, content: Any) -> None:
            if isinstance(content, RaftSnapshot):
                self.judge.snapshot(content)
            save(path, content)

        return judged

    def _cut_off(self, node_id: str) -> None:
        journal = self.journals.pop(node_id, None)
        if journal is not None and journal.open:
            os.close(journal._descriptor)
        self.disk.power_cut(self.folder / node_id)


class _WatchedJournal(Journal):
    world: World

    def __init__(self, path: Path) -> None:
        self.node_id = path.parent.name
        super().__init__(path)
        self.world.journals[self.node_id] = self
        self._judge(self._entries)

    def add(self, entry: Entry) -> None:
        self.world.judge.entered(self._entries[-1] if self._entries else None, entry)
        super().add(entry)

    def cut_tail(self, place: int) -> None:
        if 0 < place < len(self._entries):
            self._told(self._entries[place - 1][1])
        super().cut_tail(place)

    def replace(self, entries: list[Entry]) -> None:
        self._judge(entries)
        _, end, term = entries[-1]
        if self.node_id in self.world.nodes:
            self._told(end)
        elif any(own[1] == end and own[2] != term for own in self._entries):
            self.world.judge.replaced(self.node_id, end, term)
        super().replace(entries)

    def _told(self, end: int) -> None:
        if end < self._entries[-1][1]:
            self.world.judge.cut(self.node_id, self.world.nodes.get(self.node_id), end)

    def _judge(self, entries: list[Entry]) -> None:
        for before, entry in zip([None, *entries], entries, strict=False):
            self.world.judge.entered(before, entry)


@contextmanager
def raft_world(
    folder: Path, seed: int, plant: Callable[[pytest.MonkeyPatch], None] | None = None, **sizes: Any
) -> Iterator[World]:
    """A world with one clock for all nodes; `plant` leaves a rule out first."""
    world = World(folder, seed, Sizes(**sizes))
    with pytest.MonkeyPatch.context() as patch:
        world.engine.patch(world, patch)
        if plant is not None:
            plant(patch)
        world.engine.watch(world, patch)
        world.disk.patch(patch)
        yield world
        for journal in world.journals.values():
            if journal.open:
                os.close(journal._descriptor)
