"""The routes of the HTTP API: each declared operation behind the gate, its values checked, its errors in one form.

Requests and answers are JSON. A body has its declared form and no other member, a query its declared parameters, each
once. Invariants: an operation is called only for a proved viewer, and an act only for one who may act; every error is
`application/problem+json`; what a function did not foresee is logged and told without details.
Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from console.api.operations import ApiCall, Operation
from console.api.problems import CONTENT_TYPE, ApiProblem, bad, problem_of
from console.cluster import BrokerGroupsView
from console.figures import OverviewFigures
from console.viewers import MONITOR
from console.web.gate import ConsoleGate, Proved, TooManyFailures
from remoting.protocol.errors import LightMQError
from runtime.logs import get_logger

PREFIX = "/api/v1"
JSON = "application/json"
Answering = Callable[[web.Request], Awaitable[web.StreamResponse]]
LOG = get_logger("console")
_encode = msgspec.json.encode


def problem(error: ApiProblem) -> web.Response:
    """Return an error as a response."""
    return web.Response(status=error.status, body=error.body(), content_type=CONTENT_TYPE, headers=error.headers)


def as_json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return a value as a response."""
    return web.Response(status=status, body=_encode(value), content_type=JSON, headers=headers)


def telling_problems(serve: Answering) -> Answering:
    """Return the same with every error as a problem."""

    async def telling(request: web.Request) -> web.StreamResponse:
        try:
            return await serve(request)
        except TooManyFailures as error:
            response = problem(error)
            if not await error.delay():
                response.force_close()
            return response
        except ApiProblem as error:
            return problem(error)
        except LightMQError as error:
            return problem(problem_of(error))
        except web.HTTPRequestEntityTooLarge:
            return problem(ApiProblem(413, "too_large", "the body is too large"))
        except ConnectionError:
            raise
        except Exception:
            LOG.exception("console_request_failed", method=request.method, path=request.path)
            return problem(ApiProblem(500, "failed", "the request failed; see the log of this process"))

    return telling


class ApiRoutes:
    """Serves the operations."""

    def __init__(
        self, gate: ConsoleGate, cluster: BrokerGroupsView, figures: OverviewFigures, operations: tuple[Operation, ...]
    ) -> None:
        self._gate = gate
        self._cluster = cluster
        self._figures = figures
        self._operations = operations

    def attach(self, application: web.Application) -> None:
        """Add what is served here to an application that has not started."""
        for operation in self._operations:
            application.router.add_route(operation.method, PREFIX + operation.path, self._serving(operation))

    def prove(self, request: web.Request, *, needs_origin: bool = False) -> Proved:
        """Return who sends a request that comes neither in the clear nor from another site. Raises ApiProblem."""
        self._gate.check_way(request)
        self._gate.check_site(request, needs_origin=needs_origin)
        return self._gate.prove(request)

    def _serving(self, operation: Operation) -> Answering:
        async def serve(request: web.Request) -> web.StreamResponse:
            viewer = self.prove(request).viewer
            if operation.acts and viewer.role == MONITOR:
                raise ApiProblem(403, "forbidden", "the role monitor may look at everything and change nothing")
            values = query_of(request, operation) | path_of(request, operation)
            body = None if operation.body is None else await body_of(request, operation)
            result = await operation.call(ApiCall(viewer, self._cluster, self._figures, values, body))
            return web.Response(status=204) if result is None else as_json(result)

        return telling_problems(serve)


def query_of(request: web.Request, operation: Operation) -> dict[str, Any]:
    """Return the declared parameters of the query. Raises ApiProblem (400)."""
    given: dict[str, str] = {}
    known = {parameter.name for parameter in operation.query}
    for name, value in request.query.items():
        if name not in known:
            raise bad(f"there is no parameter {name[:64]!r}; there are: {', '.join(sorted(known)) or 'none'}")
        if name in given:
            raise bad(f"the parameter {name} is repeated")
        given[name] = value
    values: dict[str, Any] = {}
    for parameter in operation.query:
        text = given.get(parameter.name)
        if text is None and parameter.required:
            raise bad(f"the parameter {parameter.name} is missing")
        values[parameter.name] = parameter.default if text is None else parameter.parse(text)
    return values


def path_of(request: web.Request, operation: Operation) -> dict[str, Any]:
    """Return the declared parameters of the path. Raises ApiProblem (400)."""
    return {parameter.name: parameter.parse(request.match_info[parameter.name]) for parameter in operation.in_path}


async def body_of(request: web.Request, operation: Operation) -> Any:
    """Return the declared structure of the body. Raises ApiProblem: 400, 413, 415."""
    assert operation.body is not None
    raw = await read_json(request, operation.body_bytes_max)
    return decoded(raw or b"{}", operation.body)


async def read_json(request: web.Request, bytes_max: int) -> bytes:
    """Return a body that says it is JSON, or none at all. Raises ApiProblem: 413, 415."""
    if not request.body_exists:
        return b""
    if request.content_type != JSON:
        raise ApiProblem(415, "not_json", f"the body must be {JSON}")
    if (request.content_length or 0) > bytes_max:  # before any of it is read
        raise ApiProblem(413, "too_large", f"the body may have {bytes_max} bytes")
    raw = bytearray()
    async for chunk in request.content.iter_any():
        raw += chunk
        if len(raw) > bytes_max:
            raise ApiProblem(413, "too_large", f"the body may have {bytes_max} bytes")
    return bytes(raw)


def decoded(raw: bytes, form: type[Any]) -> Any:
    """Return a body in its form. Raises ApiProblem (400)."""
    try:
        return msgspec.json.decode(raw, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad(f"the body does not fit: {error}") from error
