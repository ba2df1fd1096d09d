"""Everything that the administration port serves for the console, attached to its application.

Invariant: a path below `/api/` or `/console/` that no route has is answered here, never by the port's own pages.
Loop rule: on the loop's thread.
"""

from __future__ import annotations

from aiohttp import web

from console.api import openapi, table
from console.api.problems import ApiProblem
from console.cluster import BrokerGroupsView
from console.config import ConsoleConfig
from console.figures import OverviewFigures
from console.tokens import TokenFile
from console.viewers import Identities
from console.web.events import EventRoutes, Viewing, event_sources
from console.web.gate import ConsoleGate
from console.web.live import LiveRoutes
from console.web.serving import PREFIX, ApiRoutes, telling_problems
from console.web.sign_in import SignInRoutes
from console.web.static_files import StaticFiles, secure_headers
from runtime.clock import Clock
from runtime.metrics import Registry

JSON = "application/json"


def attach_all(
    application: web.Application,
    config: ConsoleConfig,
    *,
    cluster: BrokerGroupsView,
    figures: OverviewFigures,
    identities: Identities,
    tokens: TokenFile | None,
    clock: Clock,
    registry: Registry,
) -> None:
    """Add every route and the security headers to an application that has not started."""
    gate = ConsoleGate(config, identities, tokens, clock, registry)
    viewing = Viewing(config.viewers_max, registry)
    api = ApiRoutes(gate, cluster, figures, table.OPERATIONS)
    application.on_response_prepare.append(secure_headers)
    api.attach(application)
    SignInRoutes(gate, api).attach(application)
    EventRoutes(gate, api, figures, viewing, event_sources(cluster)).attach(application)
    LiveRoutes(gate, api, cluster, viewing, config.live_messages_max, registry).attach(application)
    StaticFiles(gate).attach(application)
    _Description(gate).attach(application)
    application.router.add_route("*", "/api{rest:.*}", telling_problems(_unknown))


class _Description:
    """Serves the OpenAPI document, which tells nothing about this installation: everybody may read it."""

    def __init__(self, gate: ConsoleGate) -> None:
        self._gate = gate
        self._body = b""

    def attach(self, application: web.Application) -> None:
        """Add what is served here to an application that has not started."""
        application.router.add_get(f"{PREFIX}/openapi.json", telling_problems(self.serve))

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve the document, made at the first request."""
        self._gate.check_way(request)
        self._body = self._body or openapi.document(table.OPERATIONS)
        return web.Response(body=self._body, content_type=JSON)


async def _unknown(request: web.Request) -> web.StreamResponse:
    """Answer for a path without an operation, or a method that its path does not have."""
    path = request.path.removeprefix(PREFIX)
    methods = sorted(one.method for one in table.OPERATIONS if _matches(one.path, path))
    methods = methods or {"/session": ["DELETE", "GET", "POST"]}.get(path, [])
    methods = methods or (["GET"] if path in ("/events", "/live", "/openapi.json") else [])
    if methods:
        allowed = ", ".join(methods)
        raise ApiProblem(405, "no_such_method", f"the methods here are {allowed}", {"Allow": allowed})
    raise ApiProblem(404, "not_found", f"there is no such operation; see {PREFIX}/openapi.json")


def _matches(pattern: str, path: str) -> bool:
    wanted, given = pattern.split("/"), path.split("/")
    return len(wanted) == len(given) and all(
        one.startswith("{") or one == other for one, other in zip(wanted, given, strict=True)
    )
