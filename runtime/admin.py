"""The administration port: ``/metrics``, ``/livez``, ``/startupz`` and ``/readyz`` for supervisors, ``/status``.

``/livez`` answers 200 while the loop turns; ``/startupz`` as well, and as this port opens last, nobody answers before
the recovery is done; ``/readyz`` 200 with every part true, else 503, with the parts as JSON in both cases and, where a
part knows it, the reason why it is not ready; what is wrong and no reason to send nobody there stands under
``degraded``; ``/status`` is a JSON picture for people and for the command line.
Nothing here changes anything.

A browser's request is answered only under `localhost`, an address in figures, or a name that is configured, so that no
page can read what its visitor's machine may (DNS rebinding). Connections are few, and each must send its first request
within seconds. Answers name no versions.
aiohttp is imported when the server starts, so that nobody pays for it who has no administration port.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from remoting.protocol.web_host import is_safe_host
from runtime.metrics import Registry

if TYPE_CHECKING:
    from aiohttp import web

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_HEADER_BYTES_MAX = 8_190
CONNECTIONS_MAX = 256
"""Connections at one time; the next one is closed at once."""
FIRST_REQUEST_S_MAX = 10.0
"""A connection that has made no whole request within this time is closed."""
KEEP_ALIVE_S = 15.0
"""How long a connection may take to make its next request."""


class AdminServer:
    """An HTTP server of a few read-only pages."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        registry: Registry,
        readiness: Callable[[], Mapping[str, bool]],
        status: Callable[[], Mapping[str, Any]],
        reasons: Callable[[], Mapping[str, str]] = dict,
        hosts: Collection[str] = (),
        degraded: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """``reasons``: part -> why it cannot do its work; ``degraded``: what is wrong although it can; or empty.

        ``hosts``: its further names.
        """
        self._degraded = degraded
        self.host = host
        self.port = port
        self._registry = registry
        self._readiness = readiness
        self._status = status
        self._reasons = reasons
        self._hosts = (host, *hosts)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._refused = registry.counter(
            "rocketmq_admin_requests_refused_total", "Requests at the administration port refused for their Host header"
        )

    async def start(self) -> int:
        """Listen; the answer (and ``port`` from now on) is the port, also when 0 was asked. Raises OSError."""
        from aiohttp import web

        from runtime.admin_protocol import protocol_factory

        application = web.Application(client_max_size=CLIENT_HEADER_BYTES_MAX, middlewares=[self._guard()])
        application.router.add_get("/metrics", self._metrics_page)
        application.router.add_get("/livez", self._live_page)
        application.router.add_get("/startupz", self._started_page)
        application.router.add_get("/readyz", self._ready_page)
        application.router.add_get("/status", self._status_page)
        runner = web.AppRunner(application, access_log=None, handle_signals=False)
        await runner.setup()
        assert runner.server is not None
        limits = (CONNECTIONS_MAX, FIRST_REQUEST_S_MAX, KEEP_ALIVE_S)
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(protocol_factory(runner.server, *limits), self.host, self.port)
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self.port

    async def stop(self) -> None:
        """Close the listener and what is connected; more than once is fine."""
        runner, self._runner = self._runner, None
        if self._server is not None:
            self._server.close()
            self._server = None
        if runner is not None:
            await runner.cleanup()

    def _guard(self) -> Any:
        """What looks at each request before its page does."""
        from aiohttp import web

        @web.middleware
        async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
            host = request.headers.get("Host")
            if host is not None and not is_safe_host(host, self._hosts):
                self._refused.value += 1
                text = "this port answers to localhost, to addresses in figures, and to the names in admin_hosts\n"
                return web.Response(text=text, status=403)
            response: web.StreamResponse = await handler(request)
            return response

        return guard

    async def _metrics_page(self, _request: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response(body=self._registry.page(), headers={"Content-Type": METRICS_TYPE})

    async def _live_page(self, _request: web.Request) -> web.Response:
        return _json({"live": True}, 200)

    async def _started_page(self, _request: web.Request) -> web.Response:
        return _json({"started": True}, 200)

    async def _ready_page(self, _request: web.Request) -> web.Response:
        parts = dict(self._readiness())
        ready = all(parts.values())
        reasons = {part: reason for part, reason in self._reasons().items() if reason}
        told = {"reasons": reasons} if reasons else {}
        degraded = {part: words for part, words in self._degraded().items() if words}
        told |= {"degraded": degraded} if degraded else {}
        return _json({"ready": ready, "parts": parts, **told}, 200 if ready else 503)

    async def _status_page(self, _request: web.Request) -> web.Response:
        return _json(dict(self._status()), 200)


def _json(content: Mapping[str, Any], status: int) -> web.Response:
    from aiohttp import web

    text = json.dumps(content, indent=2, default=str) + "\n"
    return web.Response(text=text, status=status, content_type="application/json")
