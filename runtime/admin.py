"""The administration port: ``/metrics``, ``/livez``, ``/startupz`` and ``/readyz`` for supervisors, ``/status``.

``/livez`` answers 200 while the loop turns; ``/startupz`` as well, and as this port opens last, only after the
recovery; ``/readyz`` 200 with every part true, else 503. To permitted clients it also shows the parts as
JSON and, if known, the reason why a part is not ready; problems that do not stop the service are listed under
``degraded``; ``/status`` is the process's status as JSON, for people and for the command line.
These pages change nothing. A site, such as the console, may add paths of its own, which judge their clients themselves.

A guard decides about every page; a page unknown to the guard is an error when the server is made. Without a key
requests are answered only under `localhost`, an IP address or a configured name, so that no web page can read what its
visitor's machine may (DNS rebinding); this holds for the paths of a site, too.
Connections, their limits and HTTP itself are in `runtime.http_port`, which is imported at the start, in a thread.
Loop rule: on the loop's thread; pages are made without waiting.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import ssl
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from remoting import background, clock
from remoting.protocol.errors import LightMQError
from remoting.protocol.web_host import is_safe_host
from runtime.logs import get_logger
from runtime.metrics import Registry

if TYPE_CHECKING:
    from aiohttp import web

    from runtime.http_port import Handling, HttpPort

METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Request:
    """What a page needs to know of a request."""

    method: str
    path: str
    host: str
    """The client's name for this server; without a Host header the address that it connected to."""
    authorization: str
    accept: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a request: a page or an error."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def text_answer(status: int, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer with a sentence as plain text."""
    return Answer(status, "text/plain; charset=utf-8", f"{text}\n".encode(), headers or {})


Pages = Callable[[Request, str], Answer]
"""(request, address of the peer) -> answer."""


class AttachedSite(Protocol):
    """Further paths of the port."""

    def attach(self, application: web.Application) -> None:
        """Add routes to the application, which is not yet started."""
        ...


READY, READY_PARTS = "/readyz", "/readyz parts"
"""The page, and its details on single parts, which need a separate right."""
CHALLENGE = {"WWW-Authenticate": 'Basic realm="LightMQ", charset="UTF-8"'}
HOST, UNPROVEN, FORBIDDEN, MALFORMED = REASONS = ("host", "unproven", "forbidden", "malformed")
"""Reasons of refused requests, as metric labels; the middle two come from the guard."""
LOG_INTERVAL_S = 60.0
"""Shortest interval between log lines for refusals for one reason."""


class Guard(Protocol):
    """Decides which pages a client may see."""

    @property
    def pages(self) -> Collection[str]:
        """The pages it decides about."""
        ...

    def proves(self, authorization: str) -> bool:
        """Whether this header proves a key."""
        ...

    def judge(self, page: str, address: str, authorization: str, *, counted: bool = True) -> str:
        """Empty when the peer at this address may see the page, else UNPROVEN or FORBIDDEN."""
        ...


class AdminServer:
    """An HTTP server of a few read-only pages and, where there is one, of a site."""

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
        site: AttachedSite | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``reasons``: part -> why it cannot work; ``degraded``: part -> what is wrong although it can work.

        ``hosts``: its further names; ``tls``: None for plain HTTP. Raises LightMQError for a page unknown to the guard.
        """
        self._degraded = degraded
        self.host = host
        self.port = port
        self._guard = guard
        self._readiness = readiness
        self._reasons = reasons
        self._hosts = (host, *hosts)
        self._site = site
        self._tls = tls
        self._http: HttpPort | None = None
        self._log = get_logger("admin")
        self._logged: dict[str, tuple[float, int]] = {}
        refused = registry.counter(
            "rocketmq_admin_requests_refused_total",
            "Requests at the administration port refused, by reason",
            labels=("reason",),
        )
        self._refused = {reason: refused.child(reason) for reason in REASONS}
        self._pages: dict[str, Pages] = {
            "/metrics": lambda request, _address: Answer(200, *registry.page(request.accept)),
            "/livez": lambda _request, _address: _json({"live": True}),
            "/startupz": lambda _request, _address: _json({"started": True}),
            READY: self._ready_page,
            "/status": lambda _request, _address: _json(dict(status())),
        }
        if strangers := {READY_PARTS, *self._pages} - set(guard.pages):
            raise LightMQError(f"no right is declared for {', '.join(sorted(strangers))}: remoting.access.rights")

    @property
    def pages(self) -> frozenset[str]:
        """The pages of this server, each known to the guard."""
        return frozenset((READY_PARTS, *self._pages))

    async def start(self) -> int:
        """Listen and return the port, also in ``port``; 0 requests any free one. Raises OSError."""
        http_port = await asyncio.to_thread(importlib.import_module, "runtime.http_port")
        application: web.Application = http_port.make_application(self._from_safe_hosts)
        if self._site is not None:
            self._site.attach(application)
        application.router.add_route("*", "/{page:.*}", self._serve_page)
        http: HttpPort = http_port.HttpPort(application, self._malformed)
        self.port = await http.start(self.host, self.port, self._tls)
        self._http = http
        return self.port

    async def stop(self) -> None:
        """Close the listener and all connections; idempotent."""
        http, self._http = self._http, None
        if http is not None:
            await http.stop()

    async def _from_safe_hosts(self, request: web.Request, handler: Handling) -> web.StreamResponse:
        """Refuse requests under names that a web page may have pointed here, and what can be read in two ways."""
        if request.version.major != 1 or len(request.headers.getall("Authorization", ())) > 1:
            self._malformed()
            return _response(text_answer(400, "not a request of HTTP version 1 with one authorization at most"))
        refusal = self._refused_host(_request_of(request), request.remote or "local")
        return await handler(request) if refusal is None else _response(refusal)

    async def _serve_page(self, request: web.Request) -> web.StreamResponse:
        if request.body_exists:
            self._malformed()
            response = _response(text_answer(400, "requests must not have a body"))
            response.force_close()
            return response
        if request.method not in METHODS:
            return _response(text_answer(405, "this port only serves pages", {"Allow": ", ".join(METHODS)}))
        return _response(self.answer(_request_of(request), _address_of(request)))

    def answer(self, request: Request, address: str) -> Answer:
        """Return the requested page, or the error for this peer."""
        refusal = self._refused_host(request, address)
        if refusal is not None:
            return refusal
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

    def _refused_host(self, request: Request, address: str) -> Answer | None:
        """Return the refusal of a name under which this server may not be asked without a key."""
        if is_safe_host(request.host, self._hosts) or self._guard.proves(request.authorization):
            return None
        self._refuse(HOST, request.path, address)
        return text_answer(403, "without an access key use localhost, an IP address or a name from admin_hosts")

    def _refuse(self, reason: str, page: str, address: str) -> None:
        """Count a refusal, and log it at most every LOG_INTERVAL_S."""
        counter = self._refused[reason]
        counter.value += 1
        now_s = clock.monotonic_s()
        last_s, count = self._logged.get(reason, (now_s - LOG_INTERVAL_S, 0))
        if now_s - last_s >= LOG_INTERVAL_S:
            self._logged[reason] = now_s, counter.value
            self._log.warning(
                "admin_page_refused", page=page[:64], address=address, reason=reason, since_last=counter.value - count
            )

    def _malformed(self) -> None:
        self._refused[MALFORMED].value += 1

    def unready(self) -> dict[str, str]:
        """Part -> why it cannot do its work now, empty where nothing is known; nothing while every part can."""
        parts, reasons = self._judged()
        return {part: reasons.get(part, "") for part, ready in parts.items() if not ready}

    def _judged(self) -> tuple[dict[str, bool], dict[str, str]]:
        parts = dict(self._readiness())
        reasons = {part: reason for part, reason in self._reasons().items() if reason}
        dead = background.deaths()
        if dead:
            parts["background"] = False
            reasons["background"] = "; ".join(f"no longer {does}: {error}" for does, error in dead.items())
        return parts, reasons

    def _ready_page(self, request: Request, address: str) -> Answer:
        parts, reasons = self._judged()
        ready = all(parts.values())
        status = 200 if ready else 503
        if self._guard.judge(READY_PARTS, address, request.authorization, counted=False):
            return _json({"ready": ready}, status)
        told = {"reasons": reasons} if reasons else {}
        degraded = {part: words for part, words in self._degraded().items() if words}
        told |= {"degraded": degraded} if degraded else {}
        return _json({"ready": ready, "parts": parts, **told}, status)


def _json(content: Mapping[str, Any], status: int = 200) -> Answer:
    text = json.dumps(content, indent=2, default=str) + "\n"
    return Answer(status, "application/json; charset=utf-8", text.encode())


def _request_of(request: web.Request) -> Request:
    headers = request.headers
    return Request(
        request.method, request.path, request.host, headers.get("Authorization", ""), headers.get("Accept", "")
    )


def _address_of(request: web.Request) -> str:
    """Return the peer's host and port."""
    name = request.transport.get_extra_info("peername") if request.transport is not None else None
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "local"


def _response(answer: Answer) -> web.Response:
    from aiohttp import web

    headers = {**answer.headers, "Content-Type": answer.content_type}
    return web.Response(status=answer.status, body=answer.body, headers=headers)
