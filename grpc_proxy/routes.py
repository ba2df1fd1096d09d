"""QueryRoute and QueryAssignment: where a topic's queues are, and which of them a push consumer receives from.

Every queue is at the address at which the client reaches the proxy, so that a balancer in front of several proxies, or
a mapped port, needs no setting. A topic is asked for at every broker group, and kept for some seconds; of a group that
cannot be reached, as it was last known.
Invariant: a route is answered only to clients that may locate the topic; that a topic does not exist is only said when
every group has said so. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from grpc_proxy.brokers import BrokerGroups
from grpc_proxy.groups import ConsumedGroups
from grpc_proxy.link import BrokerLink
from grpc_proxy.mapping import routes as mapping
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.mapping.routes import RoutedTopic, TopicPlaces
from grpc_proxy.mapping.statuses import status
from grpc_proxy.mapping.values import group_of, topic_of
from grpc_proxy.stubs import service
from remoting.protocol.bodies.pull_body import FROM_REPLICA_FIELD
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.transport.failures import ConnectionLost, RequestTimeout
from runtime.clock import Clock

KEPT_NS = 5_000_000_000
TOPICS_MAX = 10_000
"""Topics remembered at a time; beyond it all are dropped."""

_decode = msgspec.json.Decoder(RoutedTopic).decode


class Routes:
    """Topics as the brokers have them."""

    def __init__(self, brokers: BrokerGroups, groups: ConsumedGroups, clock: Clock) -> None:
        self._brokers = brokers
        self._groups = groups
        self._clock = clock
        self._known: dict[str, tuple[int, TopicPlaces]] = {}

    async def query_route(self, caller: GrpcCaller, request: Any) -> Any:
        """The queues of a topic."""
        topic = topic_of(request.topic)
        mapping.check_endpoints(request.endpoints)
        queues = mapping.route(await self._ask(caller, topic), request.topic, request.endpoints)
        return service.QueryRouteResponse(status=status(), message_queues=queues)

    async def query_assignment(self, caller: GrpcCaller, request: Any) -> Any:
        """What a consumer receives from: all queues of a broker group at once, because messages are owned one by one;
        each, in order."""
        topic, group = topic_of(request.topic), group_of(request.group)
        mapping.check_endpoints(request.endpoints)
        places = await self._ask(caller, topic)
        rules = await self._groups.rules(caller, group)
        fifo = rules.consume_message_orderly and rules.lite_topic_parent != topic
        queues = mapping.assignment(places, request.topic, request.endpoints, fifo=fifo)
        assignments = [{"message_queue": queue} for queue in queues]
        return service.QueryAssignmentResponse(status=status(), assignments=assignments)

    async def places(self, topic: str) -> TopicPlaces:
        """A topic as it was some seconds ago at most; asked for by the proxy itself. Raises LightMQError."""
        known = self._known.get(topic)
        if known is not None and self._clock.monotonic_ns() - known[0] < KEPT_NS:
            return known[1]
        return await self._ask(None, topic)

    async def _ask(self, caller: GrpcCaller | None, topic: str) -> TopicPlaces:
        links = self._brokers.links
        asked = self._brokers.reachable()
        answers = await asyncio.gather(*(_config(link, caller, topic) for link in asked))
        found = dict(zip((link.name for link in asked), answers, strict=True))
        before = dict(self._known[topic][1].groups) if topic in self._known else {}
        groups, unknown, lost, missing = [], [], None, None
        for link in links:
            answer = found.get(link.name)
            if isinstance(answer, Refused):
                missing = answer
            elif isinstance(answer, RoutedTopic):
                groups.append((link.name, answer))
            elif link.name in before:
                groups.append((link.name, before[link.name]))
            else:
                unknown.append(link.name)
                lost = answer
        if not groups:
            if not unknown and missing is not None:
                raise missing
            raise lost or ConnectionLost(f"the broker group {', '.join(unknown)} cannot be reached")
        places = TopicPlaces(topic, tuple(groups), tuple(unknown))
        self._keep(topic, places)
        return places

    def _keep(self, topic: str, places: TopicPlaces) -> None:
        if len(self._known) >= TOPICS_MAX:
            self._known.clear()
        self._known[topic] = self._clock.monotonic_ns(), places


async def _config(link: BrokerLink, caller: GrpcCaller | None, topic: str) -> RoutedTopic | LightMQError:
    """A topic at one group; the error when it does not have it or cannot be reached. Raises any other error."""
    try:
        answer = await link.request(caller, RequestCode.GET_TOPIC_CONFIG, {"topic": topic, FROM_REPLICA_FIELD: "true"})
    except Refused as refused:
        if refused.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return refused
    except (ConnectionLost, RequestTimeout) as error:
        return error
    try:
        return _decode(answer.body)
    except msgspec.MsgspecError as error:
        raise LightMQError(f"the broker's answer about {topic!r} is malformed: {error}") from error
