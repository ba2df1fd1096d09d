"""The administration port: ``/metrics``, ``/livez``, ``/startupz`` and ``/readyz`` for supervisors, ``/status``.

``/livez`` answers 200 while the loop turns; ``/startupz`` as well, and as this port opens last, nobody answers before
the recovery is done; ``/readyz`` 200 with every part true, else 503, with the parts as JSON in both cases and, where a
part knows it, the reason why it is not ready; ``/status`` is a JSON picture for people and for the command line.
Nothing here changes anything.
aiohttp is imported when the server starts, so that nobody pays for it who has no administration port.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from runtime.metrics import Registry

if TYPE_CHECKING:
    from aiohttp import web

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_HEADER_BYTES_MAX = 8_190


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
    ) -> None:
        """``reasons``: part -> why it cannot do its work; empty for one that can."""
        self.host = host
        self.port = port
        self._registry = registry
        self._readiness = readiness
        self._status = status
        self._reasons = reasons
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen; the answer (and ``port`` from now on) is the port, also when 0 was asked. Raises OSError."""
        from aiohttp import web

        application = web.Application(client_max_size=CLIENT_HEADER_BYTES_MAX)
        application.router.add_get("/metrics", self._metrics_page)
        application.router.add_get("/livez", self._live_page)
        application.router.add_get("/startupz", self._started_page)
        application.router.add_get("/readyz", self._ready_page)
        application.router.add_get("/status", self._status_page)
        runner = web.AppRunner(application, access_log=None, handle_signals=False)
        await runner.setup()
        try:
            await web.TCPSite(runner, self.host, self.port).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self.port = int(runner.addresses[0][1])
        return self.port

    async def stop(self) -> None:
        """Close the listener and what is connected; more than once is fine."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

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
        return _json({"ready": ready, "parts": parts, **told}, 200 if ready else 503)

    async def _status_page(self, _request: web.Request) -> web.Response:
        return _json(dict(self._status()), 200)


def _json(content: Mapping[str, Any], status: int) -> web.Response:
    from aiohttp import web

    text = json.dumps(content, indent=2, default=str) + "\n"
    return web.Response(text=text, status=status, content_type="application/json")
