"""Limits of the administration port's connections; what it answers is in test_admin."""

from __future__ import annotations

import asyncio

from aiohttp import web

from runtime.admin_protocol import SERVER_NAME, protocol_factory


async def test_a_served_connection_is_kept_for_its_keep_alive_time_only() -> None:
    """The limit of the first request does not end it, the pause after it does."""

    async def page(_request: web.BaseRequest) -> web.Response:
        return web.Response(text="x")

    server = web.Server(page)
    listener = await asyncio.get_running_loop().create_server(protocol_factory(server, 9, 0.3, 1.0), "127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\nx"), 20)
            assert f"Server: {SERVER_NAME}".encode() in head
            await asyncio.sleep(0.5)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
    finally:
        listener.close()
        await server.shutdown()
