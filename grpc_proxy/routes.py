"""QueryRoute and QueryAssignment: where a topic's queues are, and which of them a push consumer receives from.

Every queue is at the address at which the client reaches the proxy, so that a balancer in front of several proxies, or
a mapped port, needs no setting. The number of a topic's queues is kept for some seconds, for sends in order.
Invariant: a route is answered only to clients that may locate the topic. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from typing import Any

import msgspec

from grpc_proxy.access import ClientAdmission
from grpc_proxy.groups import ConsumedGroups
from grpc_proxy.link import BrokerLink
from grpc_proxy.mapping import routes as mapping
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.mapping.routes import RoutedTopic
from grpc_proxy.mapping.statuses import status
from grpc_proxy.mapping.values import group_of, topic_of
from grpc_proxy.stubs import service
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from runtime.clock import Clock

KEPT_NS = 5_000_000_000
TOPICS_MAX = 10_000
"""Topics remembered at a time; beyond it all are dropped."""

_decode = msgspec.json.Decoder(RoutedTopic).decode


class Routes:
    """Topics as the broker has them."""

    def __init__(self, link: BrokerLink, admission: ClientAdmission, groups: ConsumedGroups, clock: Clock) -> None:
        self._link = link
        self._admission = admission
        self._groups = groups
        self._clock = clock
        self._known: dict[str, tuple[int, RoutedTopic]] = {}

    async def query_route(self, caller: GrpcCaller, request: Any) -> Any:
        """The queues of a topic."""
        topic = topic_of(request.topic)
        mapping.check_endpoints(request.endpoints)
        config = await self._ask(caller, topic)
        queues = mapping.route(config, request.topic, self._admission.broker_name, request.endpoints)
        return service.QueryRouteResponse(status=status(), message_queues=queues)

    async def query_assignment(self, caller: GrpcCaller, request: Any) -> Any:
        """What a consumer receives from: all queues at once, because messages are owned one by one; each, in order."""
        topic, group = topic_of(request.topic), group_of(request.group)
        mapping.check_endpoints(request.endpoints)
        config = await self._ask(caller, topic)
        rules = await self._groups.rules(caller, group)
        fifo = rules.consume_message_orderly and rules.lite_topic_parent != topic
        queues = mapping.assignment(config, request.topic, self._admission.broker_name, request.endpoints, fifo=fifo)
        assignments = [{"message_queue": queue} for queue in queues]
        return service.QueryAssignmentResponse(status=status(), assignments=assignments)

    async def config(self, topic: str) -> RoutedTopic:
        """A topic as it was some seconds ago at most; asked for by the proxy itself. Raises LightMQError."""
        known = self._known.get(topic)
        if known is not None and self._clock.monotonic_ns() - known[0] < KEPT_NS:
            return known[1]
        return await self._ask(None, topic)

    async def _ask(self, caller: GrpcCaller | None, topic: str) -> RoutedTopic:
        answer = await self._link.request(caller, RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
        try:
            config = _decode(answer.body)
        except msgspec.MsgspecError as error:
            raise LightMQError(f"the broker's answer about {topic!r} is malformed: {error}") from error
        if len(self._known) >= TOPICS_MAX:
            self._known.clear()
        self._known[topic] = self._clock.monotonic_ns(), config
        return config
