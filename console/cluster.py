"""Requests of the console: to the controllers, which know the brokers, and to the master of each broker group.

A request is made in somebody's name. An access key is named to the broker, which judges it by the rights of that key;
what a token does, the console does itself, and it names the viewer for the audit. A monitor's key may not list what
only administrators may, so the console asks for such views itself: `VIEWS` are the requests that only read, and show no
message. Invariants: an act of a key is never made without its name; a broker's refusal is never turned into an answer;
a group without a master is reported as missing, not left out silently.
Loop rule: on the loop's thread; connections are made when they are needed, and kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from console.viewers import ADMIN, MONITOR, Viewer
from remoting import clock
from remoting.access.rights import MONITOR as MONITOR_ACTION
from remoting.access.rights import RIGHTS
from remoting.protocol.bodies.controller_body import (
    LEADER_ADDRESS_FIELD,
    ClusterInfo,
    ControllerMetadata,
    decode_body,
    from_fields,
)
from remoting.protocol.errors import LightMQError, Refused, RemoteViolation
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import ConnectionLost, RequestTimeout, checked, not_master

TIMEOUT_MS = 8_000
"""How long an answer may take."""
KNOWN_FOR_S = 2.0
"""How long the list of brokers is used before it is asked for again."""
FAILURES_SHOWN = 4
ROAD = "console"
VIEWS = frozenset({
    Code.CLUSTER_STATUS, Code.TOPIC_LIST, Code.SESSION_LIST, Code.TIMERS, Code.CLIENT_LIST, Code.GET_ALL_TOPIC_CONFIG,
    Code.GET_TOPIC_CONFIG, Code.GET_TOPIC_STATS_INFO, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.GET_CONSUME_STATS,
    Code.GET_BROKER_CONSUME_STATS, Code.GET_CONSUMER_CONNECTION_LIST, Code.GET_CONSUMER_LIST_BY_GROUP,
    Code.QUERY_TOPIC_CONSUME_BY_WHO, Code.QUERY_TOPICS_BY_CONSUMER, Code.GET_BROKER_CLUSTER_INFO,
    Code.GET_ROUTEINFO_BY_TOPIC, Code.CONTROLLER_GET_METADATA_INFO, Code.CONTROLLER_GET_SYNC_STATE_DATA,
    Code.GET_BROKER_EPOCH_CACHE, Code.GET_BROKER_HA_STATUS, Code.GET_BROKER_RUNTIME_INFO,
})  # fmt: skip
"""Requests that read the state of the installation and show no message, no secret and no configuration."""


class NotTheLeader(ConnectionLost):
    """A controller that does not lead; it may name the one that does."""

    def __init__(self, answer: Command) -> None:
        super().__init__(answer.remark or "this controller does not lead")
        self.leader = answer.fields.get(LEADER_ADDRESS_FIELD, "")


@dataclass(frozen=True, slots=True)
class Asked:
    """The answers of all broker groups."""

    answers: dict[str, Command]
    missing: dict[str, str]
    """Group -> why it has not answered."""

    def objects(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the answers as JSON objects, by group."""
        return [(name, json_object(answer)) for name, answer in self.answers.items()]


class BrokerGroupsView:
    """The installation behind the console."""

    def __init__(self, dial: Dial, controllers: Callable[[], tuple[str, ...]]) -> None:
        """`controllers`: addresses of name servers, asked in this order."""
        self._dial = dial
        self._controllers = controllers
        self._connections: dict[str, Connection] = {}
        self._dialling: dict[str, asyncio.Lock] = {}
        self._known: dict[str, str] = {}
        self._known_until_s = 0.0
        self._members: dict[str, str] = {}
        self._members_until_s = 0.0

    async def close(self) -> None:
        """Close every connection."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()

    async def masters(self) -> dict[str, str]:
        """Return the address of each broker group's master, empty where there is none, by name."""
        if not self._known or clock.monotonic_s() >= self._known_until_s:
            answer = await self.ask_controller(None, Code.GET_BROKER_CLUSTER_INFO)
            table = decode_body(answer.body, ClusterInfo).broker_addr_table
            self._known = {name: data.master() or "" for name, data in sorted(table.items())}
            self._known_until_s = clock.monotonic_s() + KNOWN_FOR_S
        return self._known

    async def controllers(self) -> dict[str, str]:
        """Return the address of each controller, as the controllers know one another, by `controller NAME`."""
        if not self._members or clock.monotonic_s() >= self._members_until_s:
            answer = await self.ask_controller(None, Code.CONTROLLER_GET_METADATA_INFO)
            self._members = {f"controller {name}": address for name, address in members(answer).items()}
            self._members_until_s = clock.monotonic_s() + KNOWN_FOR_S
        return self._members

    async def ask_controller(
        self, viewer: Viewer | None, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """Ask the controllers in turn until one answers. Raises Refused, ConnectionLost."""
        failures, addresses = [], list(self._controllers())
        for address in addresses:  # which grows by a leader that is named
            try:
                return await self._ask(address, viewer, code, fields or {}, body)
            except NotTheLeader as error:
                failures.append(str(error))
                if error.leader and error.leader not in addresses:
                    addresses.append(error.leader)
            except (ConnectionLost, RequestTimeout) as error:
                failures.append(str(error))
        raise ConnectionLost("no controller answers: " + "; ".join(failures[:FAILURES_SHOWN]))

    async def ask_at(
        self, address: str, viewer: Viewer | None, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """Ask the server at an address. Raises Refused, ConnectionLost, RequestTimeout."""
        return await self._ask(address, viewer, code, fields or {}, body)

    async def ask(
        self,
        broker: str,
        viewer: Viewer | None,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        wait_ms: int = 0,
    ) -> Command:
        """Ask the master of a broker group. Raises Refused, ConnectionLost, RequestTimeout.

        `wait_ms`: how long the broker waits by request.
        """
        address = (await self.masters()).get(broker)
        if not address:
            raise ConnectionLost(f"the broker group {broker} has no master")
        return await self._ask(address, viewer, code, fields or {}, body, wait_ms=wait_ms)

    async def ask_all(
        self, viewer: Viewer | None, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Asked:
        """Ask every broker group. Raises the refusal when all refuse, and the failure when none answers."""
        names = list(await self.masters())
        found = await asyncio.gather(
            *(self.ask(name, viewer, code, fields, body) for name in names), return_exceptions=True
        )
        answers: dict[str, Command] = {}
        missing: dict[str, str] = {}
        failures: list[BaseException] = []
        for name, one in zip(names, found, strict=True):
            if isinstance(one, Command):
                answers[name] = one
            elif isinstance(one, LightMQError):
                missing[name] = str(one)
                failures.append(one)
            else:
                raise one
        if not answers:
            raise failures[0] if failures else ConnectionLost("the controllers know no broker group")
        return Asked(answers, missing)

    async def _ask(
        self,
        address: str,
        viewer: Viewer | None,
        code: int,
        fields: Mapping[str, str],
        body: bytes,
        *,
        wait_ms: int = 0,
    ) -> Command:
        command = Command(code, fields={**fields, **_named(viewer, code)}, body=body)
        connection = await self._connection(address)
        answer = await connection.request(command, TIMEOUT_MS + wait_ms)
        moved = not_master(answer)
        if moved is not None:
            self._known_until_s = 0.0
            raise moved
        if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            raise NotTheLeader(answer)
        return checked(answer)

    async def _connection(self, address: str) -> Connection:
        async with self._dialling.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is None or connection.closed:
                self._known_until_s = 0.0
                connection = self._connections[address] = await self._dial(address)
            return connection


def _named(viewer: Viewer | None, code: int) -> dict[str, str]:
    """Return the fields that say in whose name a request is made."""
    if viewer is None:
        return {}
    fields = {"road": ROAD, "actor": viewer.user, "actorRole": viewer.role, "actorHost": viewer.host}
    if viewer.role == MONITOR and (code in VIEWS or (viewer.key is None and _is_view(code))):
        return fields
    if viewer.key is not None:
        return {**fields, "onBehalfOf": viewer.key, "onBehalfHost": viewer.host}
    if viewer.role != ADMIN and code not in VIEWS:
        return {**fields, "onBehalfOf": "", "onBehalfHost": viewer.host}
    return fields


def _is_view(code: int) -> bool:
    """Whether the role monitor suffices: a token without a key has this role by what the console knows."""
    right = RIGHTS.get(code)
    return right is not None and right.action == MONITOR_ACTION


def json_object(answer: Command) -> dict[str, Any]:
    """Return the answer's body as a JSON object. Raises RemoteViolation."""
    value = fastjson.loads(answer.body)
    if not isinstance(value, dict):
        raise RemoteViolation("an answer is not a JSON object")
    return value


def members(answer: Command) -> dict[str, str]:
    """Return the controllers that an answer with metadata names: name -> address."""
    metadata = from_fields(answer.fields, ControllerMetadata)
    named = [each.partition("-") for each in metadata.peers.split(";") if each]
    leader = metadata.controller_leader_address or ""
    return {name: address for name, _, address in named} or {metadata.controller_leader_id or "": leader}


async def or_none(asked: Awaitable[Command]) -> Command | None:
    """Return the answer, None for a refusal or for a server that does not answer: for parts of a larger picture."""
    try:
        return await asked
    except (Refused, ConnectionLost, RequestTimeout):
        return None
