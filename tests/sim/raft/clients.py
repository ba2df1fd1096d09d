"""Clients of the controllers: each sends one request at a time, retries it until it is answered, and reads."""

from __future__ import annotations

from controller.raft.messages import REGULAR
from controller.replicas.group import Outcome
from tests.sim.raft.machines import RAISING, in_envelope
from tests.sim.raft.world import World

RAISING_EVERY = 17
"""Of so many commands one meets a fault of the machine."""


class Client:
    """A request at a time, under one id however often it is proposed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.request = 0
        self.waiting = False
        """Whether the request has no answer yet."""
        self.reads = 0
        self._floor = 0
        """What was seen when the request was first sent."""

    def step(self, node_id: str) -> None:
        """Send a new request, or retry the last one if its outcome is unknown or it takes too long."""
        if not self.waiting:
            self.request += 1
            self.waiting = True
            self._floor = self.world.judge.floor
        request = self.request
        raising = request % RAISING_EVERY == 0
        word = f"{RAISING if raising else ''}{self.name}:{request}"
        self.world.proposed += 1

        def done(answer: object, granted: bool) -> None:
            if not granted or request != self.request or not self.waiting:
                return
            self.waiting = False
            assert isinstance(answer, Outcome)
            if not raising:
                self.world.judge.applied(node_id, machine)
                self.world.judge.answer(word.encode(), int(answer.remark), self._floor)

        node, machine = self.world.nodes[node_id], self.world.machines[node_id]
        data = REGULAR + in_envelope(self.name, request, word)
        self.world.act(node_id, lambda: node.ask(data, done))

    def read(self, node_id: str) -> None:
        """Read once an entry of the reader's own is committed, as controllers do."""
        world, node, machine = self.world, self.world.nodes[node_id], self.world.machines[node_id]
        if not node.leads:
            return
        expected, floor = len(world.judge.answered), world.judge.floor

        def done(_answer: object, granted: bool) -> None:
            if granted:
                self.reads += 1
                world.judge.read(node_id, machine, expected, floor)

        world.act(node_id, lambda: node.ask_read(done))
