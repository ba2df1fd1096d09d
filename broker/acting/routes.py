"""Where topics are, as the name servers say that a replica is connected to.

All of them are asked at once, and the first route that is looked for counts: a name server that is new knows no topics.
Nothing is kept.

Invariant: a route is one that a name server gave now. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from remoting.client.controllers import Controllers
from remoting.protocol.bodies.controller_body import TopicRoute, decode_body
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost


class NameServerRoutes:
    """Routes of topics."""

    def __init__(self, controllers: Controllers, wait_ms: int, log: Any) -> None:
        """`controllers`: the name servers, which have `wait_ms` to answer."""
        self._controllers, self._wait_ms, self._log = controllers, wait_ms, log

    async def find_route(self, topic: str) -> TopicRoute:
        """Where a topic's queues are, in all broker groups. Raises ConnectionLost when no name server says so."""
        route = await self.first(topic, lambda route: bool(route.queue_datas))
        if route is None:
            raise ConnectionLost("no name server that answers knows the topic")
        return route

    async def first(self, topic: str, is_wanted: Callable[[TopicRoute], bool]) -> TopicRoute | None:
        """The first route of a topic that is looked for, None when no answer has one."""
        found: asyncio.Future[TopicRoute | None] = asyncio.get_running_loop().create_future()
        asked = answered = 0

        def question() -> Command:
            nonlocal asked
            asked += 1
            return Command(Code.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic})

        def answer(address: str, reply: Command | None) -> None:
            nonlocal answered
            answered += 1
            route = self._read(address, reply) if reply is not None and reply.code == 0 else None
            wanted = route if route is not None and is_wanted(route) else None
            if not found.done() and (wanted is not None or answered >= asked):
                found.set_result(wanted)

        self._controllers.call_all(question, answer)
        if not asked:
            return None
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(found, self._wait_ms / 1_000)
        return None

    def _read(self, name_server: str, reply: Command) -> TopicRoute | None:
        try:
            return decode_body(reply.body, TopicRoute)
        except LightMQError as error:
            self._log.warning("route_not_read", name_server=name_server, error=str(error))
            return None
