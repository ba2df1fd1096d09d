"""Real servers for the tests of remoting: every fixture stops what it started."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from remoting import inprocess
from remoting.client.connection import connect
from remoting.server.server import RemotingServer
from remoting.transport.contracts import Connection, Handler

Serve = Callable[..., Awaitable[RemotingServer]]
Link = Callable[[Handler], Awaitable[Connection]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a server for a handler on a free port."""
    servers: list[RemotingServer] = []

    async def start(handler: Handler, **limits: Any) -> RemotingServer:
        server = RemotingServer(handler, **limits)
        await server.start("127.0.0.1", 0)
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.stop(0.2)


@pytest.fixture(params=["socket", "in-process"])
async def link(request: pytest.FixtureRequest, serve: Serve) -> AsyncIterator[Link]:
    """Connect to a handler, over a socket and inside the process: both must behave the same."""
    connections: list[Connection] = []

    async def over(handler: Handler, **limits: int) -> Connection:
        connection: Connection
        if request.param == "socket":
            server = await serve(handler)
            connection = await connect("127.0.0.1", server.port, **limits)
        else:
            connection = inprocess.connect(handler, **limits)
        connections.append(connection)
        return connection

    yield over
    for connection in connections:
        await connection.close()
