"""What operators ask: topics, clusters, broker status; used by the command line, the health checks and tests.

Everything goes over the `Connection` it is given: a name server's for routes, a broker's for its topics; in the
all-in-one both are the same port. Loop rule: all on the loop's thread.
"""

from __future__ import annotations

from typing import Any

from remoting.protocol import fastjson
from remoting.protocol.codes import RequestCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.route_body import PERM_READ, PERM_WRITE, ClusterInfo, TopicList, TopicRoute, decode_body
from remoting.transport.contracts import REQUEST_TIMEOUT_MS, Connection
from remoting.transport.failures import checked


class Admin:
    """Administration over one connection; every method raises `Refused` with the server's reason."""

    def __init__(self, connection: Connection, *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        self._connection = connection
        self._timeout_ms = timeout_ms

    async def cluster(self) -> ClusterInfo:
        """Every broker group the name server knows (106)."""
        return decode_body((await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body, ClusterInfo)

    async def topic_names(self) -> list[str]:
        """Names of all topics the name server knows (206)."""
        body = (await self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body
        return sorted(decode_body(body, TopicList).topic_list)

    async def route(self, topic: str) -> TopicRoute:
        """Where a topic's queues are (105)."""
        response = await self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, acceptStandardJsonOnly="true")
        return decode_body(response.body, TopicRoute)

    async def topics(self) -> dict[str, Any]:
        """The broker's topics with their queues and counts (9030), as the JSON object it answers."""
        return _json_object((await self._ask(RequestCode.TOPIC_LIST)).body)

    async def status(self) -> dict[str, Any]:
        """The broker's own view of itself (9031), as the JSON object it answers."""
        return _json_object((await self._ask(RequestCode.CLUSTER_STATUS)).body)

    async def create_topic(self, topic: str, queue_count: int, *, perm: int = PERM_READ | PERM_WRITE) -> None:
        """Create a topic on the broker, or change its queue count and permission (17)."""
        await self._ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic=topic,
            defaultTopic="TBW102",
            readQueueNums=str(queue_count),
            writeQueueNums=str(queue_count),
            perm=str(perm),
            topicFilterType="SINGLE_TAG",
            topicSysFlag="0",
            order="false",
        )

    async def _ask(self, code: int, **fields: str) -> Command:
        return checked(await self._connection.request(Command(code, fields=fields), self._timeout_ms))


def _json_object(body: bytes) -> dict[str, Any]:
    value = fastjson.loads(body)
    if not isinstance(value, dict):
        raise RemoteViolation("answer is no JSON object")
    return value
