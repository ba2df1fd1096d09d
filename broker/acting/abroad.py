"""Sends messages to the masters of other groups, for a replica that stands in for its own.

The masters come from the route of a topic, as the first name server says that knows one; a message goes to the first
that takes it. What one pass learned and opened is used until `hang_up`.

Invariant: nothing goes to this group, or to a broker that is not writable. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from broker.acting.routes import NameServerRoutes
from remoting.client.controllers import Controllers
from remoting.protocol.bodies.controller_body import TopicRoute
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.properties import encode_properties
from remoting.protocol.records.stored_message import StoredMessage
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import checked

if TYPE_CHECKING:
    from broker.config import BrokerConfig

TIMEOUT_MS = 3_000
ESCAPED_FROM = b"ESCAPED_FROM"
"""Property of what was sent: this group and the log position."""
PRODUCER_GROUP = "lightmq-escape"
MASTER_ID, WRITABLE = 0, 2

Target = tuple[str, int]
"""(address, number of queues)."""


class OtherGroups:
    """The way out of a group that has no master."""

    def __init__(self, config: BrokerConfig, controllers: Controllers, dial: Dial, log: Any) -> None:
        """`controllers`: the name servers."""
        self.said = ""
        """Why a message was not sent, as said last."""
        self._config, self._dial, self._log = config, dial, log
        self._name_servers = NameServerRoutes(controllers, config.replication.request_timeout_ms, log)
        self._dialled: dict[str, asyncio.Future[Connection]] = {}
        self._routes: dict[str, asyncio.Future[list[Target]]] = {}

    async def send(
        self,
        message: StoredMessage,
        properties: Iterable[tuple[bytes, bytes]],
        position: int,
        to: str = "",
        more: Mapping[str, str] | None = None,
    ) -> bool:
        """Send a message of this log position to one group that has its topic; whether one has acknowledged it.

        `to`: the topic that it is to have there, if another one; `more`: fields of the request.
        """
        topic = message.topic.decode()
        targets = await self._known(topic)
        if not targets:
            self.say(f"no other group takes messages of the topic {topic}")
        first = position % len(targets) if targets else 0
        for address, queues in targets[first:] + targets[:first]:
            place = (topic, queues, position % queues) if not to else (to, 1, 0)
            command = self._sending(message, properties, position, place, more or {})
            dialled = self._dial_once(address)
            try:
                connection = await asyncio.shield(dialled)
                checked(await connection.request(command, TIMEOUT_MS))
            except Refused as refused:
                self.say(str(refused))
            except (LightMQError, OSError) as error:
                if self._dialled.get(address) is dialled:
                    del self._dialled[address]
                await self._close(dialled)
                self.say(str(error))
            else:
                return True
        return False

    async def hang_up(self) -> None:
        """Close what was opened, and forget the routes."""
        dialled, self._dialled = list(self._dialled.values()), {}
        routes, self._routes = list(self._routes.values()), {}
        for route in routes:
            route.cancel()
        for each in dialled:
            await self._close(each)

    def say(self, why: str) -> None:
        """Log why a message waits, once."""
        if why != self.said:
            self.said = why
            self._log.warning("not_escaped", reason=why)

    def _sending(
        self,
        message: StoredMessage,
        properties: Iterable[tuple[bytes, bytes]],
        position: int,
        place: tuple[str, int, int],
        more: Mapping[str, str],
    ) -> Command:
        topic, queues, index = place
        origin = f"{self._config.broker_name}/{position}".encode()
        kept = [(key, value) for key, value in properties if key != ESCAPED_FROM]
        text = encode_properties([*kept, (ESCAPED_FROM, origin)])
        fields = {
            "a": PRODUCER_GROUP, "b": topic, "c": "TBW102", "d": str(queues), "e": str(index),
            "f": str(message.sys_flag), "g": str(message.born_ms), "h": str(message.flag),
            "i": text.decode("utf-8", "replace"), "j": str(message.reconsume_times), "m": "false",
        }  # fmt: skip
        return Command(Code.SEND_MESSAGE_V2, fields=fields | dict(more), body=message.body)

    def _dial_once(self, address: str) -> asyncio.Future[Connection]:
        dialled = self._dialled.get(address)
        if dialled is None:
            dialled = self._dialled[address] = asyncio.ensure_future(self._dial(address))
        return dialled

    async def _known(self, topic: str) -> list[Target]:
        known = self._routes.get(topic)
        if known is None:
            known = self._routes[topic] = asyncio.ensure_future(self._targets(topic))
        return await asyncio.shield(known)

    async def _close(self, dialled: asyncio.Future[Connection]) -> None:
        if not dialled.cancel() and not dialled.cancelled() and dialled.exception() is None:
            await dialled.result().close()

    async def _targets(self, topic: str) -> list[Target]:
        """The masters of other groups that take messages of a topic, as the first name server says that knows one."""
        route = await self._name_servers.first(topic, lambda route: bool(self._in_route(route)))
        return [] if route is None else self._in_route(route)

    def _in_route(self, route: TopicRoute) -> list[Target]:
        masters = {each.broker_name: each.broker_addrs.get(MASTER_ID) for each in route.broker_datas}
        return [
            (address, each.write_queue_nums)
            for each in route.queue_datas
            if each.broker_name != self._config.broker_name and each.perm & WRITABLE and each.write_queue_nums
            if (address := masters.get(each.broker_name))
        ]
