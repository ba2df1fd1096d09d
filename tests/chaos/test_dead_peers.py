"""A connection into a machine that nothing reaches ends by itself, in use and idle, long before TCP gives up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from remoting.client.blocking import BlockingConnection
from remoting.client.connection import SocketConnection, connect
from remoting.protocol.frames.commands import Command
from remoting.transport import dead_peers
from remoting.transport.failures import ConnectionLost
from tests.chaos.fault_proxy import IN, OUT
from tests.chaos.network import NamespaceNetwork

ANSWER = """
import asyncio, sys
from remoting.server.server import RemotingServer

async def serve():
    server = RemotingServer(lambda peer, command: command.reply())
    print(await server.start(sys.argv[1], 0), flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""
DEADLINE_MS = 60_000
"""Far above the silence set here, far below the time after which TCP gives up."""

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not NamespaceNetwork.possible(), reason="network namespaces need root and the tool ip"),
]


@pytest.fixture
def network() -> Iterator[NamespaceNetwork]:
    made = NamespaceNetwork(["a"])
    yield made
    made.close()


@pytest.fixture
def port(network: NamespaceNetwork, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a server in a, whose clients wait for 1 s instead of 10."""
    for name, value in (("SILENCE_MS_MAX", 1_000), ("IDLE_S", 1), ("PROBE_INTERVAL_S", 1)):
        monkeypatch.setattr(dead_peers, name, value)
    command = [*network.prefix_of("a"), sys.executable, "-c", ANSWER, network.host("a")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()


async def ended(connection: SocketConnection) -> str:
    """Why it ended."""
    reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    connection.on_close(reason.set_result)
    async with asyncio.timeout(DEADLINE_MS / 1000):
        return await reason


async def test_in_use_and_idle(network: NamespaceNetwork, port: int):
    busy, idle = [await connect(network.host("a"), port) for _ in range(2)]
    assert (await busy.request(Command(1))).code == 0
    network.cut("a", frozenset({IN, OUT}))
    with pytest.raises(ConnectionLost):
        await busy.request(Command(1), DEADLINE_MS)
    assert await ended(idle)


def test_without_a_loop(network: NamespaceNetwork, port: int):
    connection = BlockingConnection(network.host("a"), port, DEADLINE_MS)
    assert connection.request(Command(1)).code == 0
    network.cut("a", frozenset({IN, OUT}))
    with pytest.raises(ConnectionLost):
        connection.request(Command(1))
    connection.close()
