"""Administration: topics, clusters, broker status; for asyncio.

All requests go over one `Connection`: a name server's for routes, a broker's for its topics; in the all-in-one both are
the same port. Loop rule: on the loop's thread; `threads.Admin` is the same for other threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remoting.protocol.bodies.controller_body import (
    PERM_READ,
    PERM_WRITE,
    ClusterInfo,
    TopicList,
    TopicRoute,
    decode_body,
)
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import StoredMessage, iter_stored
from remoting.transport.contracts import REQUEST_TIMEOUT_MS, Connection
from remoting.transport.failures import checked

TIME_MAX_MS = 2**62
"""Later than any store time."""


class AsyncAdmin:
    """Administration over one connection; every method raises `Refused` with the server's reason."""

    def __init__(self, connection: Connection, *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        self._connection = connection
        self._timeout_ms = timeout_ms

    async def cluster(self) -> ClusterInfo:
        """Return every broker group known to the name server (106)."""
        return decode_body((await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body, ClusterInfo)

    async def topic_names(self) -> list[str]:
        """Return the names of all topics known to the name server (206)."""
        body = (await self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body
        return sorted(decode_body(body, TopicList).topic_list)

    async def route(self, topic: str) -> TopicRoute:
        """Return where a topic's queues are (105)."""
        response = await self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, acceptStandardJsonOnly="true")
        return decode_body(response.body, TopicRoute)

    async def topics(self) -> dict[str, Any]:
        """Return the broker's topics with their queues and counts (9030), as the JSON object of its answer."""
        return _json_object((await self._ask(RequestCode.TOPIC_LIST)).body)

    async def status(self) -> dict[str, Any]:
        """Return the broker's status (9031), as the JSON object of its answer."""
        return _json_object((await self._ask(RequestCode.CLUSTER_STATUS)).body)

    async def create_topic(
        self,
        topic: str,
        queue_count: int,
        *,
        perm: int = PERM_READ | PERM_WRITE,
        attributes: Mapping[str, str | None] | None = None,
    ) -> None:
        """Create a topic on the broker, or change its queue count, permission and attributes (17).

        `attributes` are added to the topic's, such as `{"queue.type": "BatchCQ"}` for a batch topic; None removes one.
        """
        fields = topic_fields(topic, queue_count, perm=perm, attributes=attributes)
        await self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)

    async def topic_config(self, topic: str, *, for_write: bool = False) -> dict[str, Any]:
        """Return a topic's configuration (351), as the JSON object of the answer; `Refused` (17) for no such topic.

        `for_write`: a LightMQ broker that creates topics on first use creates it now.
        """
        more = {"forWrite": "true"} if for_write else {}
        return _json_object((await self._ask(RequestCode.GET_TOPIC_CONFIG, topic=topic, **more)).body)

    async def query(
        self,
        topic: str,
        key: str,
        *,
        count: int = 32,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX_MS,
        unique: bool = False,
    ) -> list[StoredMessage]:
        """Return the newest messages of a topic with a key, between two store times (12); `unique`: a unique key."""
        fields = query_fields(topic, key, count, begin_ms=begin_ms, end_ms=end_ms, unique=unique)
        command = Command(RequestCode.QUERY_MESSAGE, fields=fields)
        return found_messages(await self._connection.request(command, self._timeout_ms))

    async def _ask(self, code: int, **fields: str) -> Command:
        return checked(await self._connection.request(Command(code, fields=fields), self._timeout_ms))


def topic_fields(
    topic: str,
    queue_count: int,
    *,
    perm: int = PERM_READ | PERM_WRITE,
    attributes: Mapping[str, str | None] | None = None,
) -> dict[str, str]:
    """Return header fields of UPDATE_AND_CREATE_TOPIC; attributes not named stay unchanged, None removes one."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queue_count),
        "writeQueueNums": str(queue_count),
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    if attributes:
        changes = (f"-{name}" if value is None else f"+{name}={value}" for name, value in attributes.items())
        fields["attributes"] = ",".join(changes)
    return fields


def query_fields(topic: str, key: str, count: int, *, begin_ms: int, end_ms: int, unique: bool) -> dict[str, str]:
    """Return header fields of QUERY_MESSAGE; times are store times in ms, both ends included."""
    fields = {
        "topic": topic,
        "key": key,
        "maxNum": str(count),
        "beginTimestamp": str(begin_ms),
        "endTimestamp": str(end_ms),
    }
    return {**fields, "_UNIQUE_KEY_QUERY": "true"} if unique else fields


def found_messages(response: Command) -> list[StoredMessage]:
    """Return the messages of an answer to QUERY_MESSAGE, newest first. Refused for errors, not for no message."""
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    return list(iter_stored(checked(response).body))


def _json_object(body: bytes) -> dict[str, Any]:
    value = fastjson.loads(body)
    if not isinstance(value, dict):
        raise RemoteViolation("answer is not a JSON object")
    return value
