"""Links between controllers as the transport that PySyncObj requires, with its messages in our declared types.

Loop rule: everything on the consensus thread's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from controller.consensus.links import PeerLinks
from controller.consensus.members import ControllerNode
from controller.consensus.wire import (
    COMMANDS_KNOWN,
    MAGIC,
    Message,
    NextIndex,
    decode_message,
    encode_message,
    from_library,
    to_library,
)
from remoting.protocol.errors import RemoteViolation


class PeerTransport(Transport):  # type: ignore[misc]  # the library has no types
    """All connections of one controller."""

    def __init__(
        self,
        own: ControllerNode,
        members: Mapping[str, ControllerNode],
        key: bytes,
        *,
        silence_ms: int,
        received: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`received` is called after every message the library has taken, `failed` when taking one went wrong here."""
        super().__init__(None, None, [])
        self.own = own
        self.nodes = {each: Node(each) for each in members}
        self.links = PeerLinks(own, members, key, MAGIC, self, silence_ms=silence_ms)
        self._received = received
        self._failed = failed
        self.outdated = frozenset(members) - {own.node_id}
        """Members that have not said, since this controller started, that they know all commands of this release."""

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        """The library's: a message to a node, False when it is not connected."""
        return self.say(node, from_library(message))

    def say(self, node: Any, message: Message) -> bool:
        """A message of our own to a node, False when it is not connected."""
        if isinstance(message, NextIndex):
            message = msgspec.structs.replace(message, commands=COMMANDS_KNOWN)
        return self.links.send(node.id, encode_message(message))

    def connected(self, peer: str, *, connected: bool) -> None:
        """Tell the library."""
        if connected:
            self._onNodeConnected(self.nodes[peer])
        else:
            self._onNodeDisconnected(self.nodes[peer])
            self._received()

    def message(self, peer: str, data: bytes) -> None:
        """Hand a message of a member to the library. Raises RemoteViolation."""
        message = decode_message(data)
        if isinstance(message, NextIndex):
            self._note_commands(peer, message.commands)
        try:
            self._onMessageReceived(self.nodes[peer], to_library(message))
        except RemoteViolation:
            raise
        except Exception as error:  # noqa: BLE001 - our own files or state: the engine must end, not this connection
            self._failed(error)
        else:
            self._received()

    def _note_commands(self, peer: str, commands: int) -> None:
        """A member has said which commands it knows; an older release may have taken its place."""
        if (commands < COMMANDS_KNOWN) != (peer in self.outdated):
            self.outdated ^= {peer}
