"""Which broker holds a topic: asked of the name servers, kept for a while, asked again when it proves wrong.

Any of the name servers may answer; the one that did is asked first next time. When none answers, what is known stays in
use: with every name server dead the brokers keep serving.
Invariant: one look-up of one name is under way at a time, however many wait for it.
Loop rule: all on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from remoting.protocol.bodies.route_body import BrokerData, ClusterInfo, QueueData, TopicRoute, decode_body
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import ConnectionLost, RequestTimeout, checked

__all__ = ["BrokerData", "ClusterInfo", "QueueData", "Routes", "TopicRoute"]

LOG = logging.getLogger("remoting")

REFRESH_MS = 30_000
"""Age at which a route is asked again, RocketMQ's own period."""

LOOKUP_TIMEOUT_MS = 3_000
"""How long one name server may take before the next is asked."""

TOPICS_MAX = 10_000
"""Routes kept; the oldest is forgotten first."""

Route = TypeVar("Route", TopicRoute, ClusterInfo)


class Routes:
    """The routes of one cluster as its name servers tell them."""

    def __init__(
        self,
        controllers: Sequence[str],
        *,
        dial: Dial,
        refresh_ms: int = REFRESH_MS,
        timeout_ms: int = LOOKUP_TIMEOUT_MS,
    ) -> None:
        if not controllers:
            raise LocalMisuse("routes need the address of at least one controller")
        self._controllers = list(controllers)
        self._dial = dial
        self._refresh_seconds = refresh_ms / 1000
        self._timeout_ms = timeout_ms
        self._connections: dict[str, Connection] = {}
        self._known: dict[str, tuple[float, TopicRoute | ClusterInfo]] = {}
        self._asking: dict[str, asyncio.Task[Any]] = {}

    async def topic(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """Where the queues of a topic are; `Refused` (17) when no broker has it."""
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        return await self._look_up(f"t {topic}", RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, TopicRoute, refresh)

    async def cluster(self, *, refresh: bool = False) -> ClusterInfo:
        """Every broker group and its addresses."""
        return await self._look_up("c", RequestCode.GET_BROKER_CLUSTER_INFO, {}, ClusterInfo, refresh)

    async def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        """Send a request to the first name server that answers; `ConnectionLost` names all that did not."""
        failures: list[str] = []
        for address in list(self._controllers):
            try:
                connection = await self._connection(address)
                response = await connection.request(Command(code, fields=dict(fields), body=body), self._timeout_ms)
            except (ConnectionLost, RequestTimeout) as error:
                failures.append(str(error))
                continue
            if address != self._controllers[0]:
                self._controllers.remove(address)
                self._controllers.insert(0, address)
            return response
        raise ConnectionLost("no controller answers: " + "; ".join(failures))

    async def close(self) -> None:
        """Close the connections to the name servers."""
        for task in list(self._asking.values()):
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    async def _look_up(self, key: str, code: int, fields: dict[str, str], kind: type[Route], again: bool) -> Route:
        loop = asyncio.get_running_loop()
        known = self._known.get(key)
        if known is not None and not again and loop.time() - known[0] < self._refresh_seconds:
            return known[1]  # type: ignore[return-value]  # the key says which kind it is
        try:
            return await self._shared(key, lambda: self._fetch(key, code, fields, kind))
        except ConnectionLost as error:
            if known is None:
                raise
            LOG.warning("a route that may be old stays in use: %s", error)
            return known[1]  # type: ignore[return-value]

    async def _shared(self, key: str, fetch: Callable[[], Coroutine[Any, Any, Route]]) -> Route:
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.get_running_loop().create_task(fetch())
            task.add_done_callback(lambda _task: self._asking.pop(key, None))
        # Shielded: one impatient caller must not cancel the look-up of the others.
        result: Route = await asyncio.shield(task)
        return result

    async def _fetch(self, key: str, code: int, fields: dict[str, str], kind: type[Route]) -> Route:
        response = await self.ask(code, fields)
        if response.code != ResponseCode.SUCCESS:
            self._known.pop(key, None)
        route = decode_body(checked(response).body, kind)
        self._known.pop(key, None)
        while len(self._known) >= TOPICS_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = (asyncio.get_running_loop().time(), route)
        return route

    async def _connection(self, address: str) -> Connection:
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = self._connections[address] = await self._dial(address)
        return connection
