"""`GET /events`: what changes, as server-sent events, for every viewer the same bytes.

    history   once, at the beginning: the points of the charts
    overview  every second: the figures
    alarms    at the beginning and when they change
    roles, spark, audit   at the beginning and when they change; asked for every `ASK_S`

Each event is encoded once, however many look. What was asked is asked as the console itself, so only the roles admin
and monitor, which may see all of it, get the stream. Invariants: a viewer that does not read is dropped by the
connection's time limit and costs one event; a session that ends, ends its streams within a second or two.
Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from console.api.overview import overview_of
from console.api.problems import ApiProblem
from console.audit import acts_page
from console.cluster import BrokerGroupsView
from console.figures import OverviewFigures, Sample
from console.roles import broker_rows
from console.viewers import CLIENT
from console.web.gate import ConsoleGate, Proved
from console.web.serving import PREFIX, ApiRoutes, telling_problems
from remoting import clock
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode as Code
from runtime.http_port import connection_of
from runtime.metrics import Registry

ASK_S = 2.0
AUDIT_SHOWN = 20
RETRY_MS = 2_000
"""How long a browser waits before it connects again."""
ItemSource = Callable[[], Awaitable[list[Any]]]
_encode = msgspec.json.encode


def event(name: str, value: Any) -> bytes:
    """Return one event as it is sent; JSON has no line ends of its own."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _encode(value))


class Viewing:
    """How many streams are open, and the limit of their number."""

    def __init__(self, limit: int, registry: Registry) -> None:
        self._limit = limit
        self._open = 0
        self._refused = registry.counter(
            "rocketmq_console_streams_refused_total", "Event streams and live tails refused because too many were open"
        )
        registry.gauge("rocketmq_console_streams", "Open event streams and live tails", function=lambda: self._open)

    @contextlib.contextmanager
    def one(self) -> Any:
        """Count one stream inside. Raises ApiProblem (503) when there are too many."""
        if self._open >= self._limit:
            self._refused.value += 1
            raise ApiProblem(503, "too_many", f"{self._limit} streams are open already (console.viewers_max)")
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


class EventRoutes:
    """Streams of events, of which each is encoded once for all viewers."""

    def __init__(
        self,
        gate: ConsoleGate,
        api: ApiRoutes,
        figures: OverviewFigures,
        viewing: Viewing,
        sources: dict[str, ItemSource],
    ) -> None:
        """`sources`: event -> what returns its items."""
        self._gate = gate
        self._api = api
        self._figures = figures
        self._viewing = viewing
        self._sources = sources
        self._sampled: tuple[Sample, bytes] | None = None
        self._known: dict[str, bytes] = {}
        """Event -> the last one as it was sent."""
        self._asked_s = -ASK_S
        self._asking: asyncio.Task[None] | None = None

    def attach(self, application: web.Application) -> None:
        """Add what is served here to an application that has not started."""
        application.router.add_get(f"{PREFIX}/events", telling_problems(self.stream))

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send events until the viewer leaves or its session ends."""
        proved = self._api.prove(request)
        if proved.viewer.role == CLIENT:
            raise ApiProblem(
                403, "forbidden", "the events show the whole installation: a key with role monitor may see it"
            )
        connection = connection_of(request)
        if connection is None:
            raise ConnectionResetError
        with self._viewing.one(), self._figures.watched():
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
            response.force_close()
            await response.prepare(request)
            connection.stream()
            await self._send_all(request, response, proved)
        return response

    async def _send_all(self, request: web.Request, response: web.StreamResponse, proved: Proved) -> None:
        await self._figures.fresh()
        history = event("history", {"points": list(self._figures.history)})
        await response.write(b"retry: %d\n\n" % RETRY_MS + history + self._overview(self._figures.sample))
        sent: dict[str, bytes] = {}
        while True:
            await self._ask()
            changed = {name: data for name, data in self._known.items() if sent.get(name) != data}
            sent |= changed
            if changed:
                await response.write(b"".join(changed.values()))
            sample = await self._figures.next()
            if not self._gate.lasts(request, proved):
                await response.write(event("signed_out", {}))
                return
            await response.write(self._overview(sample))

    def _overview(self, sample: Sample) -> bytes:
        if self._sampled is None or self._sampled[0] is not sample:
            self._sampled = sample, event("overview", overview_of(self._figures))
            self._known["alarms"] = event("alarms", {"items": self._figures.alarms})
        return self._sampled[1]

    async def _ask(self) -> None:
        """Have the slower events looked for, once for all viewers; nobody waits for a slow broker."""
        now_s = clock.monotonic_s()
        if now_s - self._asked_s >= ASK_S and (self._asking is None or self._asking.done()):
            self._asked_s = now_s
            self._asking = asyncio.get_running_loop().create_task(self._ask_now())
        await asyncio.sleep(0)

    async def _ask_now(self) -> None:
        for name, items in self._sources.items():
            with contextlib.suppress(LightMQError):
                self._known[name] = event(name, {"items": await items()})


def event_sources(cluster: BrokerGroupsView) -> dict[str, ItemSource]:
    """Return what gives the items of each slower event, asked as the console itself; nothing here changes anything."""

    async def roles() -> list[Any]:
        return await broker_rows(cluster, None)

    async def spark() -> list[Any]:
        asked = await cluster.ask_all(None, Code.SPARK_QUERIES)
        return [{**row, "broker": broker} for broker, body in asked.objects() for row in body.get("queries", ())]

    async def audit() -> list[Any]:
        return (await acts_page(cluster, None, {}, AUDIT_SHOWN, {})).acts

    return {"roles": roles, "spark": spark, "audit": audit}
