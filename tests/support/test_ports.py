"""A reserved port is given to no other process by chance, and to its server at every start."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys

import pytest

from tests.support import ports
from tests.support.ports import free_port

TAKE = """
import sys
from tests.support import ports
ports._candidates = [int(sys.argv[1]), int(sys.argv[1]) + 1]
print(ports.free_port())
"""


async def test_a_server_listens_on_it_any_number_of_times() -> None:
    port = free_port()
    for _ in range(3):
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
        with pytest.raises(OSError, match="in use"):
            await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
        server.close()
        await server.wait_closed()


def test_no_other_process_is_given_it() -> None:
    """Neither here nor in another process, and no connection is made to it while no server is there."""
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    assert port not in [free_port() for _ in range(20)]
    found = subprocess.run([sys.executable, "-c", TAKE, str(port)], capture_output=True, text=True, check=False)
    assert found.stdout.strip() != str(port), found.stderr
    with contextlib.closing(socket.socket()) as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("127.0.0.1", port))


def test_a_port_in_use_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        other = free_port() + 1
        monkeypatch.setattr(ports, "_candidates", [number, other])
        assert free_port() == other
