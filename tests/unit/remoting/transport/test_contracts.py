"""The two faces are what the transports really are."""

from __future__ import annotations

from remoting.client.connection import SocketConnection
from remoting.client.reconnecting import ReconnectingConnection
from remoting.client.uplink import MasterConnection
from remoting.inprocess import InProcessConnection, InProcessPeer
from remoting.server.peer import SocketPeer
from remoting.transport.contracts import Connection, Peer


def members(protocol):
    return {name for name in dir(protocol) if not name.startswith("_")} | set(protocol.__annotations__)


def has(kind, name):
    return hasattr(kind, name) or any(
        f"self.{name}" in line for each in kind.__mro__[:-1] for line in source_of(each).splitlines()
    )


def source_of(kind):
    import inspect

    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""


def test_every_transport_shows_the_whole_face():
    for face, kinds in (
        (Peer, (SocketPeer, InProcessPeer)),
        (Connection, (SocketConnection, InProcessConnection, ReconnectingConnection, MasterConnection)),
    ):
        for kind in kinds:
            missing = {name for name in members(face) if not has(kind, name)}
            assert not missing, f"{kind.__name__} lacks {missing}"
