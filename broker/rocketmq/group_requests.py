"""Requests of RocketMQ's consumers and tools about groups.

QUERY_ASSIGNMENT (400): which queues of a topic a consumer reads, for those that leave the allocation to the server. The
server allocates as RocketMQ's does: all queues of the topic's route in order, all members of the group in order, `AVG`
or `AVG_BY_CIRCLE`; every member of a broadcasting group gets all of them. A group that pops the topic gets them in mode
POP, which its members share. Invariant: with the same route and the same members every pulled queue has one reader.

Tools: connections (203, 204), offsets back to a time (222), the groups of a topic (300), the topics of a group (343),
the end of a group (207), the topics no user made (305). An offset that is moved is committed, and the group's consumers
are notified with 220, or they would commit their own again. Bodies are RocketMQ's JSON. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from broker.groups.groups import GroupClient
from broker.groups.request_modes import POP, PULL, RequestMode, RequestModes
from broker.requests import flag, json_body, number, text
from broker.rocketmq.statistics import queue_key
from broker.topics.topics import DEFAULT_TOPIC
from remoting.access.rights import ADMIN, CONSUME, of_group, of_topic
from remoting.protocol.bodies.controller_body import PERM_READ, QueueData, TopicRoute
from remoting.protocol.errors import LightMQError, NotOffered, Refused
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.groups.groups import Clients
    from broker.requests import RequestTools
    from broker.topics.topics import Topics, TopicSettings

BROADCASTING = frozenset({"BROADCASTING", "0"})
"""The model's name, and its number as the C++ client writes it."""

Queue = tuple[str, int]
"""Broker name and number of a queue."""
Strategy = Callable[[Sequence[Queue], int, int], Sequence[Queue]]
"""(queues, place of the member, members) -> the member's queues."""


def averagely(queues: Sequence[Queue], place: int, members: int) -> Sequence[Queue]:
    """Consecutive queues for each member; the first members get one more where the division leaves a remainder."""
    share, rest = divmod(len(queues), members)
    start = place * share + min(place, rest)
    return queues[start : start + share + (place < rest)]


def by_circle(queues: Sequence[Queue], place: int, members: int) -> Sequence[Queue]:
    """One queue after the other to each member in turn."""
    return queues[place::members]


STRATEGIES: dict[str, Strategy] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


ALL_QUEUES = -1
"""Queue number that stands for all queues of a broker."""


def popped_queues(
    queues: Sequence[Queue], place: int, members: int, mode: RequestMode, strategy: Strategy
) -> Sequence[Queue]:
    """What a member pops from: all queues of every broker, or its own and those of the next members as the mode says.

    With more members than queues each one gets a queue, which it shares.
    """
    if mode.pop_share_queue_num <= 0:
        return sorted({(name, ALL_QUEUES) for name, _index in queues})
    if members > len(queues):
        return [queues[place % len(queues)]] if queues else ()
    shared = range(place, place + 1 + min(mode.pop_share_queue_num, members - 1))
    return sorted({queue for at in shared for queue in strategy(queues, at % members, members)})


class AssignmentRequest(msgspec.Struct, rename="camel"):
    """Body of 400; other fields are ignored."""

    topic: str
    consumer_group: str
    client_id: str = ""
    strategy_name: str | None = None
    message_model: str | int | None = None


class RouteFinder(Protocol):
    """Where the queues of topics are in all broker groups."""

    async def find_route(self, topic: str) -> TopicRoute | None:
        """The route; None where no controller is configured. Raises LightMQError when no controller answers."""
        ...


class OwnTopics(Protocol):
    """The topics of this broker."""

    def require(self, name: str) -> TopicSettings:
        """The settings of a topic; Refused(TOPIC_NOT_EXIST) when there is none."""
        ...


@dataclass(frozen=True, slots=True)
class AssignmentRequests:
    """Allocates the queues of a topic to the members of a group."""

    tools: RequestTools
    topics: OwnTopics
    clients: Clients
    modes: RequestModes
    routes: RouteFinder

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.QUERY_ASSIGNMENT: self.query_assignment}

    def query_assignment(self, peer: Peer, command: Command) -> None:
        """400: the queues of one consumer; none for a client that is no member of its group yet."""
        try:
            request = msgspec.convert(json_body(command), AssignmentRequest)
        except msgspec.ValidationError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the assignment request is malformed: {error}") from error
        self.tools.authorizer.authorize(peer, command, CONSUME, of_group(request.consumer_group))
        self.tools.authorizer.authorize(peer, command, CONSUME, of_topic(request.topic))
        strategy = STRATEGIES.get(request.strategy_name or "AVG")
        if strategy is None:
            remark = f"allocation {request.strategy_name!r} is not offered by the server: {', '.join(STRATEGIES)}"
            raise NotOffered(ResponseCode.SYSTEM_ERROR, remark)
        later(peer, command, self._assigned(command, request, strategy))

    async def _assigned(self, command: Command, request: AssignmentRequest, strategy: Strategy) -> Command:
        queues: Sequence[Queue] = await self._queues(request.topic)
        mode = PULL
        if str(request.message_model) not in BROADCASTING:
            members = self.clients.members(request.consumer_group)
            known = self.modes.get(request.consumer_group, request.topic) or RequestMode()
            if request.client_id not in members:
                queues = ()
            elif known.mode == POP:
                mode = POP
                queues = popped_queues(queues, members.index(request.client_id), len(members), known, strategy)
            else:
                queues = strategy(queues, members.index(request.client_id), len(members))
        assignments = [
            {
                "messageQueue": {"brokerName": name, "queueId": index, "topic": request.topic},
                "mode": mode,
                "attachments": None,
            }
            for name, index in queues
        ]
        return command.reply(body=msgspec.json.encode({"messageQueueAssignments": assignments}))

    async def _queues(self, topic: str) -> list[Queue]:
        """Every queue of the topic that can be read, in every broker group; those of this broker where it is alone.

        Raises:
            Refused: TOPIC_NOT_EXIST, or SYSTEM_BUSY while no controller answers: a client that got half of the queues
                would give up the others; refused, it keeps its queues and repeats the request.
        """
        try:
            route = await self.routes.find_route(topic)
        except (LightMQError, OSError) as error:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"no controller knows where topic {topic} is: {error}") from error
        if route is None:
            own = self.topics.require(topic)
            queues = [
                QueueData(self.tools.config.broker_name, own.read_queue_count, own.write_queue_count, own.permission)
            ]
        else:
            queues = route.queue_datas
        readable = [each for each in queues if each.perm & PERM_READ]
        return sorted((each.broker_name, index) for each in readable for index in range(each.read_queue_nums))


NOW = -1
"""A time that means the end of the queue."""
NO_QUEUE = -1
"""Queue id of a request that means all queues."""

Moved = list[tuple[dict[str, Any], int]]
"""Queue and new offset of each queue that was moved."""

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True)
class GroupAdminRequests:
    """Requests of RocketMQ's tools about groups."""

    tools: RequestTools
    topics: Topics
    groups: ConsumerGroups

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            Code.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            Code.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            Code.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offsets,
            Code.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            Code.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
        }

    def consumer_connections(self, peer: Peer, command: Command) -> Command:
        """203: the consumers of a group and their subscriptions."""
        group = text(command.fields, "consumerGroup")
        self.tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        clients = self.groups.clients.clients_of(group)
        if not clients:
            raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online")
        newest = clients[-1].consumer_groups[group]
        subscriptions = {
            str(each.get("topic")): each
            for client in clients
            for each in client.consumer_groups[group].get("subscriptionDataSet") or ()
        }
        body = {
            "connectionSet": _connections(clients),
            "subscriptionTable": subscriptions,
            "consumeType": newest.get("consumeType"),
            "messageModel": newest.get("messageModel"),
            "consumeFromWhere": newest.get("consumeFromWhere"),
        }
        return command.reply(body=_encode(body))

    def producer_connections(self, peer: Peer, command: Command) -> Command:
        """204: the producers of a group."""
        group = text(command.fields, "producerGroup")
        self.tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        clients = self.groups.clients.producers_of(group)
        if not clients:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        return command.reply(body=_encode({"connectionSet": _connections(clients)}))

    def groups_of_topic(self, peer: Peer, command: Command) -> None:
        """300: groups that committed in a topic or subscribe to it now."""
        topic = text(command.fields, "topic")
        self.tools.authorizer.authorize(peer, command, ADMIN, topic)
        self.groups.commits.flush()
        later(peer, command, self._groups_of_topic(command, topic))

    async def _groups_of_topic(self, command: Command, topic: str) -> Command:
        committed, clients = set(await self.groups.offsets.by_group(topic)), self.groups.clients
        listening = {each.group_name for each in self.groups.groups if clients.subscription(each.group_name, topic)}
        return command.reply(body=_encode({"groupList": sorted(committed | listening)}))

    def topics_of_group(self, peer: Peer, command: Command) -> Command:
        """343: topics a group committed in."""
        group = text(command.fields, "group")
        self.tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        self.groups.commits.flush()
        topics = sorted({topic for topic, _index in self.groups.offsets.of_group(group)})
        return command.reply(body=_encode({"topicList": topics, "brokerAddr": self.tools.identity.address}))

    def delete_group(self, peer: Peer, command: Command) -> None:
        """207: remove a group, which its next heartbeat would create again; with `cleanOffset` its offsets too.

        Its retry and dead-letter topics stay, with what could not be consumed. Refused while a member is connected. It
        need not exist: not every broker group has every consumer group.
        """
        group = text(command.fields, "groupName")
        self.tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        if self.groups.clients.members(group):
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the group [{group}] has members that are connected: stop them first"
            )
        self.groups.commits.flush()
        known = self.groups.groups.get(group) is not None
        removed = self.groups.groups.delete(group) if known else 0
        forgotten = self.groups.offsets.forget(group) if flag(command.fields, "cleanOffset") else 0
        self.tools.answers.reply_at(max(removed, forgotten), peer, command.reply())

    def system_topics(self, peer: Peer, command: Command) -> Command:
        """305: the topics every broker has."""
        self.tools.authorizer.authorize(peer, command, ADMIN, "status")
        return command.reply(body=_encode({"topicList": [DEFAULT_TOPIC], "brokerAddr": self.tools.identity.address}))

    def reset_offsets(self, peer: Peer, command: Command) -> None:
        """222: move a group in a topic to an offset or a time, forwards only when it is forced or the end is meant."""
        fields = command.fields
        group, topic = text(fields, "group"), text(fields, "topic")
        self.tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        self.topics.require(topic)
        self.groups.commits.flush()
        moved = self._wanted(command, group, topic)
        commits = [(group, topic, int(queue["queueId"]), offset) for queue, offset in moved]
        position = self.groups.offsets.commit(commits) if commits else self.tools.store.confirm_position

        fields_for_clients = {
            "topic": topic,
            "group": group,
            "timestamp": fields.get("timestamp", "0"),
            "isForce": "true",
        }

        def done() -> None:
            for client in self.groups.clients.clients_of(group):
                code = Code.RESET_CONSUMER_CLIENT_OFFSET
                if self.groups.may_receive(client, code, group):
                    body = _moved_body(client.language, moved)
                    client.peer.send(Command(code, flag=FLAG_ONEWAY, fields=dict(fields_for_clients), body=body))
            peer.send(command.reply(body=_moved_body(command.language, moved)))

        self.tools.answers.when_confirmed(position, peer, command.reply(), done)

    def _wanted(self, command: Command, group: str, topic: str) -> Moved:
        fields = command.fields
        time_ms, forced = number(fields, "timestamp", NOW), flag(fields, "isForce")
        only, given = number(fields, "queueId", NO_QUEUE), number(fields, "offset", -1)
        moved: Moved = []
        for index, queue_id in enumerate(self.topics.queue_ids(topic)):
            if only not in (NO_QUEUE, index):
                continue
            low, high = self.tools.store.reading.bounds(queue_id)
            if given >= 0:
                offset = max(low, min(given, high))
            else:
                offset = high if time_ms == NOW else self.tools.store.reading.search_time(queue_id, time_ms)
            found = self.groups.offsets.get(group, topic, index)
            if found is not None and given < 0 and time_ms != NOW and not forced:
                offset = min(offset, found[0])
            moved.append((queue_key(self.tools.config.broker_name, topic, index), offset))
        return moved


def _moved_body(language: str, moved: Moved) -> bytes:
    """The moved offsets as JSON: queues as keys of an object for Java, as a list for other clients."""
    if language == "JAVA":
        return b'{"offsetTable":' + fastjson.object_keys(moved) + b"}"
    return _encode({"offsetTable": [{**queue, "offset": offset} for queue, offset in moved]})


def _connections(clients: Iterable[GroupClient]) -> list[dict[str, Any]]:
    return [
        {
            "clientId": client.client_id,
            "clientAddr": client.peer.address,
            "language": client.language,
            "version": client.version,
        }
        for client in clients
    ]
