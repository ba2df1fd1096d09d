"""A network that loses, delays, duplicates, reorders and cuts, in one direction or both, between any two nodes.

Messages (to and from controllers, heartbeats, clients) go one by one. A stream is like TCP: in order, nothing twice,
late when the network is bad, delayed while it is cut; its end may be noticed by one side only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.sim.cluster.world import Node, World

RETRY_MS = 40.0
"""How long a cut or lossy network keeps the bytes of a stream before they are sent again."""


class Network:
    """Which nodes reach which, and how well."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cut: set[tuple[str, str]] = set()
        """(from, to): nothing passes."""
        self.loss = 0.0
        self.doubling = 0.0
        self.slow_ms = 0.0
        """Everything may take up to so much longer."""
        self.streams: list[Stream] = []

    def delay(self) -> float:
        """The delay of a message."""
        chance = self.world.chance
        base = 0.2 + 0.8 * chance.random()
        return base + self.slow_ms * chance.random() if self.slow_ms else base

    def send_once(self, source: str, target: Node, function: Callable[..., None], *arguments: Any) -> bool:
        """One message; it arrives once or never. Return whether it is in flight."""
        if (source, target.name) in self.cut:
            return False
        if self.loss and self.world.chance.random() < self.loss:
            return False
        self.world.after(self.delay(), self._arrive, source, target, function, arguments)
        return True

    def send(self, source: str, target: Node, function: Callable[..., None], *arguments: Any) -> None:
        """One message; it arrives once, never, or twice."""
        chance = self.world.chance
        if self.send_once(source, target, function, *arguments) and self.doubling and chance.random() < self.doubling:
            self.world.after(self.delay() + 300 * chance.random(), self._arrive, source, target, function, arguments)

    def _arrive(self, source: str, target: Node, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if (source, target.name) not in self.cut:
            target.deliver(function, *arguments)

    def connect(self, client: Node, server: Node, accept: Callable[[Stream], Side]) -> Stream:
        """Open a stream; `accept` creates the server's side when it arrives."""
        stream = Stream(self, client, server, accept)
        self.streams.append(stream)
        return stream


class Side:
    """A node's end of a stream."""

    def on_data(self, data: bytes) -> None:
        """Bytes arrived."""
        raise NotImplementedError

    def on_closed(self) -> None:
        """The other end has closed; not called for one's own close."""
        raise NotImplementedError


class Stream:
    """Two directions in order. End 0 is the client's, end 1 the server's."""

    def __init__(self, network: Network, client: Node, server: Node, accept: Callable[[Stream], Side]) -> None:
        self.network = network
        self.nodes = (client, server)
        self.boots = [client.boot, server.boot]
        self.sides: list[Side | None] = [None, None]
        self.open = [True, True]
        self._queues: tuple[deque[bytes | None], deque[bytes | None]] = (deque(), deque())
        self._last = [0.0, 0.0]
        self._accept: Callable[[Stream], Side] | None = accept
        self.send(0, b"")

    def send(self, end: int, data: bytes | None) -> None:
        """Send bytes from an end to the other; None means that this end is closed."""
        if not self.open[end]:
            return
        world = self.network.world
        self._queues[end].append(data)
        late = RETRY_MS * 5 if self.network.loss and world.chance.random() < self.network.loss else 0.0
        at = max(self._last[end], world.now + self.network.delay() + late)
        self._last[end] = at
        world.after(at - world.now, self._arrive, end)

    def close(self, end: int) -> None:
        """This end closes."""
        self.send(end, None)
        self.open[end] = False

    def died(self, end: int) -> None:
        """The process of this end was killed: the machine tells the other end, if it can."""
        self.close(end)
        self.sides[end] = None

    def _arrive(self, end: int) -> None:
        source, target = self.nodes[end], self.nodes[1 - end]
        if (source.name, target.name) in self.network.cut:
            self.network.world.after(RETRY_MS, self._arrive, end)
            return
        data = self._queues[end].popleft()
        if target.boot != self.boots[1 - end] or not target.is_up:
            self._reset(1 - end)
        elif self.open[1 - end]:
            target.deliver(self._take, 1 - end, data)

    def _take(self, end: int, data: bytes | None) -> None:
        if not self.open[end]:
            return
        if end == 1 and self._accept is not None:
            accept, self._accept = self._accept, None
            self.sides[1] = accept(self)
        side = self.sides[end]
        if side is None:
            return
        if data is None:
            self.open[end] = False
            side.on_closed()
        elif data:
            side.on_data(data)

    def _reset(self, end: int) -> None:
        """There is no receiver: the sender gets a reset."""
        if self.open[end]:
            self.open[end] = True
            self.close(end)
