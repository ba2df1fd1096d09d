"""One of the two clusters of a migration: its brokers, topics, groups and offsets, by requests that RocketMQ has too.

Each broker group is reached by an `Uplink` that follows its master. Invariant: what is opened is closed by `close`.
Loop rule: all on one event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from broker.migration.followers import FollowerReport
from remoting.client.admin import AsyncAdmin, topic_fields
from remoting.client.uplink import Uplink
from remoting.protocol.bodies.controller_body import (
    PERM_READ,
    PERM_WRITE,
    TopicConfig,
    TopicConfigTable,
    decode_body,
)
from remoting.protocol.errors import LightMQError, Refused, RemoteViolation
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Connection, Dial
from remoting.transport.failures import checked

UP_TIMEOUT_MS = 10_000
"""How long the first connection to a broker may take."""

GroupQueue = tuple[str, str, int]
"""(topic, broker, queue number)."""


class Cluster:
    """The brokers of one cluster."""

    def __init__(self, name_servers: str, dial: Dial) -> None:
        """`name_servers`: host:port, several with commas or semicolons."""
        self._name_servers = [one.strip() for one in name_servers.replace(";", ",").split(",") if one.strip()]
        self._dial = dial
        self._uplinks: dict[str, Uplink] = {}
        self.clusters: list[str] = []

    async def refresh(self) -> list[str]:
        """Learn which broker groups there are and connect to new ones; returns their names.

        Raises LightMQError when no name server answers or no broker is there, and while a group that is not connected
        has no master: a plan would leave out what it holds.
        """
        info, failure = None, LightMQError("none was named")
        for address in self._name_servers:
            try:
                connection = await self._dial(address)
                try:
                    info = await AsyncAdmin(connection).cluster()
                finally:
                    await connection.close()
                break
            except LightMQError as error:
                failure = error
        if info is None:
            raise RemoteViolation(f"no name server of {', '.join(self._name_servers)} answers: {failure}")
        self.clusters = sorted(info.cluster_addr_table)
        away = [name for name in info.absent() if name not in self._uplinks]
        if away:
            raise RemoteViolation(
                f"{', '.join(self._name_servers)}: no master of the broker groups {', '.join(away)} is known, and what "
                "they hold would be left out; start them, or have groups that will not come back forgotten"
            )
        for name in sorted(info.broker_addr_table):
            if name not in self._uplinks and info.broker_addr_table[name].master() is not None:
                uplink = self._uplinks[name] = Uplink.configured(self._dial, "", self._name_servers, name)
                uplink.start()
                await uplink.line.wait_up(UP_TIMEOUT_MS)
        if not self._uplinks:
            raise RemoteViolation(f"{', '.join(self._name_servers)} knows no broker with a master")
        return sorted(self._uplinks)

    @property
    def brokers(self) -> list[str]:
        """The broker groups found so far."""
        return sorted(self._uplinks)

    def connection(self, broker: str) -> Connection:
        """The connection to a broker group's master."""
        return self._uplinks[broker].connection

    async def close(self) -> None:
        """Close every connection."""
        for uplink in self._uplinks.values():
            await uplink.close()

    async def ask(self, broker: str, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
        """A broker's answer. Raises Refused."""
        return checked(await self.connection(broker).request(Command(code, fields=fields or {}, body=body)))

    async def topics(self, broker: str) -> dict[str, TopicConfig]:
        """A broker's topics (21)."""
        answer = await self.ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG)
        return decode_body(answer.body, TopicConfigTable).topic_config_table

    async def groups(self, broker: str) -> dict[str, dict[str, Any]]:
        """A broker's subscription groups (201)."""
        body = fastjson.loads((await self.ask(broker, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)
        return _table(body, "subscriptionGroupTable")

    async def put_topic(self, broker: str, config: TopicConfig, perm: int) -> None:
        """Create a topic, or change it, with this permission (17)."""
        fields = topic_fields(config.topic_name, config.write_queue_nums, perm=perm, attributes=config.attributes or {})
        fields |= {
            "readQueueNums": str(config.read_queue_nums),
            "topicFilterType": config.topic_filter_type,
            "topicSysFlag": str(config.topic_sys_flag),
            "order": str(config.order).lower(),
        }
        await self.ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def put_group(self, broker: str, group: Mapping[str, Any]) -> None:
        """Create a subscription group (200)."""
        await self.ask(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=msgspec.json.encode(group))

    async def offsets(self, group: str, brokers: Iterable[str]) -> dict[GroupQueue, int]:
        """What a group has committed (208)."""
        found: dict[GroupQueue, int] = {}
        for broker in brokers:
            with contextlib.suppress(Refused):  # a broker that does not know the group, or nothing of it
                fields = {"consumerGroup": group, "topic": ""}
                answer = await self.ask(broker, RequestCode.GET_CONSUME_STATS, fields)
                for key, row in _table(fastjson.loads(answer.body), "offsetTable").items():
                    queue = fastjson.loads(key.encode())
                    found[queue["topic"], broker, int(queue["queueId"])] = int(row["consumerOffset"])
        return found

    async def copied(self, broker: str, source: str, topic: str | None = None) -> list[dict[str, Any]]:
        """What was copied to a LightMQ broker from a source (9081)."""
        fields = {"source": source} if topic is None else {"source": source, "topic": topic}
        body = (await self.ask(broker, RequestCode.COPIED_QUEUES, fields)).body
        queues: list[dict[str, Any]] = msgspec.json.decode(body)["queues"]
        return queues

    async def tell(self, broker: str, source: str, report: FollowerReport) -> None:
        """Tell a LightMQ broker how this migration gets on (9084)."""
        await self.ask(broker, RequestCode.TELL_FOLLOWER, {"source": source}, msgspec.json.encode(report))

    async def follower_report(self, broker: str, source: str) -> FollowerReport | None:
        """What the migration that follows told a LightMQ broker last (9085); None: nothing lately."""
        body = (await self.ask(broker, RequestCode.FOLLOWER, {"source": source})).body
        return msgspec.json.decode(body, type=FollowerReport | None)

    async def begin_return(self, broker: str, source: str, topic: str, queue: int) -> None:
        """Mirror back what is sent to a queue of a LightMQ broker from now on (9082)."""
        fields = {"source": source, "topic": topic, "queueId": str(queue)}
        await self.ask(broker, RequestCode.BEGIN_RETURN, fields)


READ_WRITE = PERM_READ | PERM_WRITE
FOREVER_REFUSED = frozenset(
    {
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
"""Refusals that a repetition does not change."""


def _table(body: Any, name: str) -> dict[str, Any]:
    table = body.get(name) if isinstance(body, dict) else None
    if not isinstance(table, dict):
        raise RemoteViolation(f"the answer has no {name}")
    return table
