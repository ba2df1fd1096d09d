"""QUERY_ASSIGNMENT (400): which queues of a topic a consumer reads, for those that leave the allocation to the server.

The server allocates as RocketMQ's does: all queues of the topic's route in order, all members of the group in order,
`AVG` or `AVG_BY_CIRCLE`; every member of a broadcasting group gets all of them. Queues are given in mode PULL, so that
consumers read them as always. Invariant: with the same route and the same members every queue has exactly one reader.
Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from broker.requests.fields import json_body
from remoting.access.resources import of_group, of_topic
from remoting.access.rights import CONSUME
from remoting.protocol.bodies.route_body import PERM_READ, QueueData, TopicRoute
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.clients import Clients
    from broker.requests.tools import RequestTools
    from broker.topics.topics import Topics

PULL = "PULL"
BROADCASTING = frozenset({"BROADCASTING", "0"})
"""The model's name, and its number as the C++ client writes it."""

Queue = tuple[str, int]
"""Broker name and number of a queue."""
Strategy = Callable[[Sequence[Queue], int, int], Sequence[Queue]]
"""(queues, place of the member, members) -> the member's queues."""


def averagely(queues: Sequence[Queue], place: int, members: int) -> Sequence[Queue]:
    """A run of neighbours for each; the first ones get one more where it does not come out even."""
    share, rest = divmod(len(queues), members)
    start = place * share + min(place, rest)
    return queues[start : start + share + (place < rest)]


def by_circle(queues: Sequence[Queue], place: int, members: int) -> Sequence[Queue]:
    """One after the other in turn."""
    return queues[place::members]


STRATEGIES: dict[str, Strategy] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


class AssignmentRequest(msgspec.Struct, rename="camel"):
    """Body of 400; whatever else is in it does not matter here."""

    topic: str
    consumer_group: str
    client_id: str = ""
    strategy_name: str | None = None
    message_model: str | int | None = None


class RouteFinder(Protocol):
    """Where the queues of topics are in all broker groups."""

    async def find_route(self, topic: str) -> TopicRoute | None:
        """The route; None where no controller is configured. Raises LightMQError when no controller says."""
        ...


class AssignmentRequests:
    """Allocates the queues of a topic to the members of a group."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: Topics,
        clients: Clients,
        routes: RouteFinder,
    ) -> None:
        self._tools = tools
        self._topics = topics
        self._clients = clients
        self._routes = routes

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.QUERY_ASSIGNMENT: self.query_assignment,
        }

    def query_assignment(self, peer: Peer, command: Command) -> None:
        """400: the queues of one consumer; none for a client that is no member of its group yet."""
        try:
            request = msgspec.convert(json_body(command), AssignmentRequest)
        except msgspec.ValidationError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the assignment request is malformed: {error}") from error
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(request.consumer_group))
        self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(request.topic))
        strategy = STRATEGIES.get(request.strategy_name or "AVG")
        if strategy is None:
            remark = f"allocation {request.strategy_name!r} is not offered by the server: {', '.join(STRATEGIES)}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        later(peer, command, self._assigned(command, request, strategy))

    async def _assigned(self, command: Command, request: AssignmentRequest, strategy: Strategy) -> Command:
        queues: Sequence[Queue] = await self._queues(request.topic)
        if str(request.message_model) not in BROADCASTING:
            members = self._clients.members(request.consumer_group)
            known = request.client_id in members
            queues = strategy(queues, members.index(request.client_id), len(members)) if known else ()
        assignments = [
            {
                "messageQueue": {"brokerName": name, "queueId": index, "topic": request.topic},
                "mode": PULL,
                "attachments": None,
            }
            for name, index in queues
        ]
        return command.reply(body=msgspec.json.encode({"messageQueueAssignments": assignments}))

    async def _queues(self, topic: str) -> list[Queue]:
        """Every queue of the topic that can be read, in every broker group; those of this broker where it is alone.

        Raises:
            Refused: TOPIC_NOT_EXIST, or SYSTEM_BUSY while nobody knows: a client that got half of the queues would give
                up the others, so it had better keep what it has and ask again.
        """
        try:
            route = await self._routes.find_route(topic)
        except (LightMQError, OSError) as error:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"no controller knows where topic {topic} is: {error}") from error
        if route is None:
            own = self._topics.require(topic)
            queues = [
                QueueData(self._tools.config.broker_name, own.read_queue_count, own.write_queue_count, own.permission)
            ]
        else:
            queues = route.queue_datas
        readable = [each for each in queues if each.perm & PERM_READ]
        return sorted((each.broker_name, index) for each in readable for index in range(each.read_queue_nums))
