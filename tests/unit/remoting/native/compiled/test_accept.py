"""Connections as bare descriptors, with their names."""

from __future__ import annotations

import fcntl
import importlib
import os
import socket

import pytest

from mqtt_proxy.listening import native_sockets
from mqtt_proxy.listening.listener import listening_sockets

accept = native_sockets.core.accept
if accept is None:
    pytest.skip(f"no driver: {native_sockets.choice.reason}", allow_module_level=True)

peer_name = importlib.import_module("remoting.native.compiled.accept").peer_name


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_does_not_block_is_not_inherited_and_sends_at_once(host: str) -> None:
    """What `listening_sockets` set is there, and the name is that of the client."""
    try:
        (listening,) = listening_sockets(host, 0)
    except OSError:
        pytest.skip(f"no {host} here")
    with listening, socket.create_connection(listening.getsockname()[:2]) as client:
        taken = accept(listening.fileno())
        assert taken is not None
        assert taken[1] == client.getsockname()[:2] == peer_name(taken[0])
        assert fcntl.fcntl(taken[0], fcntl.F_GETFL) & os.O_NONBLOCK
        assert fcntl.fcntl(taken[0], fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        with socket.socket(fileno=taken[0]) as served:
            assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert accept(listening.fileno()) is None


def test_nobody_and_nothing_to_accept_from() -> None:
    """None when nobody waits; an error when it is no listening socket; no name without an address."""
    one, other = socket.socketpair()
    with one, other:
        assert peer_name(one.fileno()) is None
        with pytest.raises(OSError, match=r"Operation not supported|Invalid argument"):
            accept(one.fileno())
    assert peer_name(one.fileno()) is None
