"""The administration port: ``/metrics``, ``/livez``, ``/startupz`` and ``/readyz`` for supervisors, ``/status``.

``/livez`` answers 200 while the loop turns; ``/startupz`` as well, and as this port opens last, nobody answers before
the recovery is done; ``/readyz`` 200 with every part true, else 503. To those who may know it also shows the parts as
JSON and, where a part knows it, the reason why it is not ready; what is wrong and no reason to send nobody there stands
under ``degraded``; ``/status`` is a JSON picture for people and for the command line.
Nothing here changes anything.

A guard is asked before every page, and a page that the guard does not know keeps the server from being made.
Without a key requests are answered only under `localhost`, an IP address or a configured name, so that no page in a
browser can read what its visitor's machine may (DNS rebinding).
Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from remoting.protocol.errors import LightMQError
from remoting.protocol.web_host import is_safe_host
from runtime.admin.connections import Answer, PageConnections, text_answer
from runtime.admin.http_head import Request
from runtime.logs import get_logger
from runtime.metrics import Registry

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
READY, READY_PARTS = "/readyz", "/readyz parts"
"""The page and what it shows of the single parts, which needs a right of its own."""
CHALLENGE = {"WWW-Authenticate": 'Basic realm="LightMQ", charset="UTF-8"'}
HOST, UNPROVEN, FORBIDDEN, MALFORMED = REASONS = ("host", "unproven", "forbidden", "malformed")
"""Why requests are refused, as the metrics name it; the middle two are a guard's words."""
LOG_INTERVAL_S = 60.0
"""Refusals for one reason are logged at most so often."""


class Guard(Protocol):
    """Who may see what."""

    @property
    def pages(self) -> Collection[str]:
        """What it can be asked about."""
        ...

    def proves(self, authorization: str) -> bool:
        """Whether this header proves a key."""
        ...

    def judge(self, page: str, address: str, authorization: str, *, counted: bool = True) -> str:
        """Empty when the peer at this address may see the page, else UNPROVEN or FORBIDDEN."""
        ...


class AdminServer:
    """An HTTP server of a few read-only pages."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        registry: Registry,
        guard: Guard,
        readiness: Callable[[], Mapping[str, bool]],
        status: Callable[[], Mapping[str, Any]],
        reasons: Callable[[], Mapping[str, str]] = dict,
        hosts: Collection[str] = (),
        degraded: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """``reasons``: part -> why it cannot do its work; ``degraded``: what is wrong although it can; or empty.

        ``hosts``: its further names. Raises LightMQError for a page of which the guard knows nothing.
        """
        self._degraded = degraded
        self.host = host
        self.port = port
        self._registry = registry
        self._guard = guard
        self._readiness = readiness
        self._status = status
        self._reasons = reasons
        self._hosts = (host, *hosts)
        self._server: asyncio.Server | None = None
        self._log = get_logger("admin")
        self._logged: dict[str, tuple[float, int]] = {}
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
            READY: self._ready_page,
            "/status": self._status_page,
        }
        if strangers := {READY_PARTS, *self._pages} - set(guard.pages):
            raise LightMQError(f"nobody has said who may see {', '.join(sorted(strangers))}: remoting.access.rights")
        self._connections = PageConnections(self.answer, self._malformed)

    @property
    def pages(self) -> frozenset[str]:
        """What is shown here, each of which the guard knows."""
        return frozenset((READY_PARTS, *self._pages))

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

    def answer(self, request: Request, address: str) -> Answer:
        """The page that was asked for, or why this peer does not get it."""
        safe = request.host is None or is_safe_host(request.host, self._hosts)
        if not safe and not self._guard.proves(request.authorization):
            self._refuse(HOST, request.path, address)
            text = "without an access key use localhost, an IP address or a name from admin_hosts"
            return text_answer(403, text)
        page = self._pages.get(request.path)
        if page is None:
            return text_answer(404, f"the pages are {', '.join(sorted(self._pages))}")
        verdict = self._guard.judge(request.path, address, request.authorization)
        if not verdict:
            return page(request, address)
        self._refuse(verdict, request.path, address)
        if verdict == FORBIDDEN:
            return text_answer(
                403, f"this key has no right to {request.path}; docs/howto/metrics.md names the role it needs"
            )
        return text_answer(401, "an access key is required: basic authentication with its name and secret", CHALLENGE)

    def _refuse(self, reason: str, page: str, address: str) -> None:
        """Count it, and say it now and then."""
        counter = self._refused[reason]
        counter.value += 1
        now_s = asyncio.get_running_loop().time()
        last_s, count = self._logged.get(reason, (now_s - LOG_INTERVAL_S, 0))
        if now_s - last_s >= LOG_INTERVAL_S:
            self._logged[reason] = now_s, counter.value
            self._log.warning(
                "admin_page_refused", page=page[:64], address=address, reason=reason, since_last=counter.value - count
            )

    def _malformed(self) -> None:
        self._refused[MALFORMED].value += 1

    def _metrics_page(self, _request: Request, _address: str) -> Answer:
        return Answer(200, METRICS_TYPE, self._registry.page())

    def _live_page(self, _request: Request, _address: str) -> Answer:
        return _json({"live": True}, 200)

    def _started_page(self, _request: Request, _address: str) -> Answer:
        return _json({"started": True}, 200)

    def _ready_page(self, request: Request, address: str) -> Answer:
        parts = dict(self._readiness())
        ready = all(parts.values())
        status = 200 if ready else 503
        if self._guard.judge(READY_PARTS, address, request.authorization, counted=False):
            return _json({"ready": ready}, status)
        reasons = {part: reason for part, reason in self._reasons().items() if reason}
        told = {"reasons": reasons} if reasons else {}
        degraded = {part: words for part, words in self._degraded().items() if words}
        told |= {"degraded": degraded} if degraded else {}
        return _json({"ready": ready, "parts": parts, **told}, status)

    def _status_page(self, _request: Request, _address: str) -> Answer:
        return _json(dict(self._status()), 200)


def _json(content: Mapping[str, Any], status: int) -> Answer:
    text = json.dumps(content, indent=2, default=str) + "\n"
    return Answer(status, "application/json; charset=utf-8", text.encode())
