"""Connections of the administration port: few, prompt, and without a word about versions.

aiohttp sets no limit to their number nor to how long the first request may take, and names itself and Python in every
answer. Invariant: a connection either makes a whole request in time or is closed. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import hdrs, web
from aiohttp.web_protocol import RequestHandler

SERVER_NAME = "LightMQ"


def protocol_factory(
    server: web.Server, connections_max: int, first_request_s_max: float, keep_alive_s: float
) -> Callable[[], asyncio.Protocol]:
    """What makes the protocol of each socket."""

    class Connection(RequestHandler):
        """One of them."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            """Count it, and begin to wait."""
            super().connection_made(transport)
            if len(server.connections) > connections_max:
                self.force_close()
                return
            self._first_due = asyncio.get_running_loop().call_later(first_request_s_max, self.force_close)

        def connection_lost(self, exc: BaseException | None) -> None:
            """Nothing is waited for any more."""
            self.served()
            super().connection_lost(exc)

        def served(self) -> None:
            """It has made a request."""
            due = getattr(self, "_first_due", None)
            if due is not None:
                due.cancel()

        async def finish_response(
            self, request: Any, resp: web.StreamResponse, start_time: float | None
        ) -> tuple[web.StreamResponse, bool]:
            """Answer without the versions, also what is no request at all."""
            self.served()
            resp.headers[hdrs.SERVER] = SERVER_NAME
            return await super().finish_response(request, resp, start_time)

    return lambda: Connection(
        server,
        loop=asyncio.get_running_loop(),
        keepalive_timeout=keep_alive_s,
        access_log=None,  # type: ignore[arg-type]
    )
