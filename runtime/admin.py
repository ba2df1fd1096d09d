"""The administration port: ``/metrics``, ``/livez``, ``/startupz`` and ``/readyz`` for supervisors, ``/status``.

``/livez`` answers 200 while the loop turns; ``/startupz`` as well, and as this port opens last, nobody answers before
the recovery is done; ``/readyz`` 200 with every part true, else 503, with the parts as JSON in both cases and, where a
part knows it, the reason why it is not ready; what is wrong and no reason to send nobody there stands under
``degraded``; ``/status`` is a JSON picture for people and for the command line.
Nothing here changes anything.

A browser's request is answered only under `localhost`, an address in figures, or a name that is configured, so that no
page can read what its visitor's machine may (DNS rebinding). Connections are `admin_protocol`'s, few and prompt.
Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from remoting.protocol.web_host import is_safe_host
from runtime.admin_protocol import Answer, PageConnections, text_answer
from runtime.http_head import Request
from runtime.metrics import Registry

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HOST, MALFORMED = REASONS = ("host", "malformed")
"""Why requests are refused, as the metrics name it."""


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
        self._server: asyncio.Server | None = None
        refused = registry.counter(
            "rocketmq_admin_requests_refused_total",
            "Requests at the administration port refused, by reason",
            labels=("reason",),
        )
        self._refused = {reason: refused.child(reason) for reason in REASONS}
        self._pages = {
            "/metrics": self._metrics_page,
            "/livez": self._live_page,
            "/startupz": self._started_page,
            "/readyz": self._ready_page,
            "/status": self._status_page,
        }
        self._connections = PageConnections(self.answer, self._malformed)

    async def start(self) -> int:
        """Listen; the answer (and ``port`` from now on) is the port, also when 0 was asked. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(self._connections, self.host, self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self.port

    async def stop(self) -> None:
        """Close the listener and what is connected; more than once is fine."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self._connections.close()

    def answer(self, request: Request, _address: str) -> Answer:
        """The page that was asked for."""
        if request.host is not None and not is_safe_host(request.host, self._hosts):
            self._refused[HOST].value += 1
            text = "this port answers to localhost, to addresses in figures, and to the names in admin_hosts"
            return text_answer(403, text)
        page = self._pages.get(request.path)
        if page is None:
            return text_answer(404, f"the pages are {', '.join(sorted(self._pages))}")
        return page()

    def _malformed(self) -> None:
        self._refused[MALFORMED].value += 1

    def _metrics_page(self) -> Answer:
        return Answer(200, METRICS_TYPE, self._registry.page())

    def _live_page(self) -> Answer:
        return _json({"live": True}, 200)

    def _started_page(self) -> Answer:
        return _json({"started": True}, 200)

    def _ready_page(self) -> Answer:
        parts = dict(self._readiness())
        ready = all(parts.values())
        reasons = {part: reason for part, reason in self._reasons().items() if reason}
        told = {"reasons": reasons} if reasons else {}
        degraded = {part: words for part, words in self._degraded().items() if words}
        told |= {"degraded": degraded} if degraded else {}
        return _json({"ready": ready, "parts": parts, **told}, 200 if ready else 503)

    def _status_page(self) -> Answer:
        return _json(dict(self._status()), 200)


def _json(content: Mapping[str, Any], status: int) -> Answer:
    text = json.dumps(content, indent=2, default=str) + "\n"
    return Answer(status, "application/json; charset=utf-8", text.encode())
