"""Connections between the nodes: FIFO in each direction, slow at times; each end notices by itself when one is over.

What is in transit when one end gives up may still arrive, or be lost; what the other end sends then is lost. A new
connection ends the old one at both ends first, as a newer socket does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from controller.consensus.members import ControllerNode
from controller.consensus.wire import Message, decode_message, encode_message, from_library, to_library

Link = tuple[str, str]
"""(sender, receiver)."""


class NumberedNode(Node):
    """The library keeps nodes in sets: their order must not be that of this process' hashes."""

    def __hash__(self) -> int:
        return int(self.id[1:])


class Network:
    """All links of one world."""

    def __init__(self) -> None:
        self.links: dict[Link, deque[bytes]] = {}
        """What is on its way."""
        self.up: set[Link] = set()
        """(whose end, to whom): the ends that believe in their connection."""
        self.slow: dict[Link, float] = {}
        """Links that bring nothing before this time."""
        self.wires: dict[str, Wire] = {}

    def connect(self, one: str, other: str) -> None:
        """A connection of two that run."""
        if {one, other} <= self.wires.keys() and not {(one, other), (other, one)} <= self.up:
            self.disconnect(one, other)
            for each, peer in ((one, other), (other, one)):
                self.links[each, peer] = deque()
                self.up.add((each, peer))
                self.wires[each]._onNodeConnected(self.wires[each].nodes[peer])

    def disconnect(self, one: str, other: str) -> None:
        """What is on its way is lost; both see it."""
        for each, peer in ((one, other), (other, one)):
            self.links.pop((each, peer), None)
            self.slow.pop((each, peer), None)
        for each, peer in ((one, other), (other, one)):
            self._notice(each, peer)

    def give_up(self, one: str, other: str) -> None:
        """One end sees the connection closed before the other, which still receives what is in transit."""
        self.links.pop((other, one), None)
        self._notice(one, other)

    def leave(self, node_id: str) -> None:
        """A node is dead, and its sockets are closed."""
        del self.wires[node_id]
        for one, other in sorted(self.up):  # a set of texts: its own order is that of this process' hashes
            if node_id in (one, other):
                self.disconnect(one, other)

    def ready(self, now: float) -> list[Link]:
        """Links with something to deliver."""
        return [each for each, waiting in self.links.items() if waiting and self.slow.get(each, 0.0) <= now]

    def _notice(self, one: str, other: str) -> None:
        if (one, other) in self.up:
            self.up.discard((one, other))
            if one in self.wires:
                self.wires[one]._onNodeDisconnected(self.wires[one].nodes[other])


class Wire(Transport):
    """One node's connections; sent messages wait in the links."""

    def __init__(self, network: Network, ids: tuple[str, ...], node_id: str) -> None:
        super().__init__(None, None, [])
        self.network = network
        self.own = ControllerNode(node_id, "h", 1, 1)
        self.nodes = {each: NumberedNode(each) for each in ids}
        self.on_say: Callable[[Message, str], None] = lambda _message, _peer: None

    def send(self, node: Node, message: dict) -> bool:
        return self.say(node, from_library(message))

    def say(self, node: Node, message: Message) -> bool:
        link = (self.own.node_id, node.id)
        if link not in self.network.up:
            return False
        self.on_say(message, node.id)
        if link in self.network.links:
            self.network.links[link].append(encode_message(message))
        return True

    def take(self, sender: str, data: bytes) -> None:
        self._onMessageReceived(self.nodes[sender], to_library(decode_message(data)))
