"""Both protocols match the real transports."""

from __future__ import annotations

import asyncio

from remoting.client.connection import ReconnectingConnection, SocketConnection
from remoting.client.uplink import MasterConnection
from remoting.inprocess import InProcessConnection, InProcessPeer
from remoting.server.peer import SocketPeer
from remoting.transport.contracts import Connection, Ending, Peer, run_close_callback


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


async def test_close_callbacks_are_called_once(caplog):
    """Also one added when it is over, and one after a callback that fails."""
    ending, heard = Ending(), []
    ending.on_close(lambda reason: heard.append(reason) or 1 // 0)
    ending.on_close(heard.append)
    assert ending.closing is None
    ending.closing = "enough"
    assert ending.reason is None
    ending.finish()
    assert heard == ["enough", "enough"]
    assert "a close callback failed" in caplog.text
    late = asyncio.Queue()
    ending.on_close(late.put_nowait)
    assert late.empty(), "never inside the call"
    assert await late.get() == ending.reason == "enough"


def test_a_failing_close_callback_is_logged(caplog):
    run_close_callback(lambda reason: 1 // 0, "why")
    assert "a close callback failed" in caplog.text
