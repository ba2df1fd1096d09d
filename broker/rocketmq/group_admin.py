"""What RocketMQ's tools ask about groups: connections (203, 204), offsets back to a time (222), who reads a topic
(300), what a group reads (343), its end (207), the topics no user made (305).

An offset that is moved is committed, and who consumes in the group now is told with 220, or it would commit its own
again. Bodies are RocketMQ's JSON. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from broker.groups.clients import GroupClient
from broker.requests.fields import flag, number, text
from broker.rocketmq.admin import queue_key
from broker.topics.topics import DEFAULT_TOPIC
from remoting.access.resources import of_group
from remoting.access.rights import ADMIN
from remoting.protocol.errors import Refused
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.requests.tools import RequestTools
    from broker.topics.topics import Topics

NOW = -1
"""A time that means the end of the queue."""
NO_QUEUE = -1
"""Queue id of a request that means all queues."""

Moved = list[tuple[dict[str, Any], int]]
"""Queue and new offset of each queue that was moved."""

_encode = msgspec.json.encode


class GroupAdminRequests:
    """What RocketMQ's tools ask about groups."""

    def __init__(self, tools: RequestTools, *, topics: Topics, groups: ConsumerGroups) -> None:
        self._tools = tools
        self._topics = topics
        self._groups = groups.groups
        self._clients = groups.clients
        self._offsets = groups.offsets
        self._group_commits = groups.commits

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
        """203: who consumes in a group, and what."""
        group = text(command.fields, "consumerGroup")
        self._tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        clients = self._clients.clients_of(group)
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
        """204: who produces for a group."""
        group = text(command.fields, "producerGroup")
        self._tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        clients = self._clients.producers_of(group)
        if not clients:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
        return command.reply(body=_encode({"connectionSet": _connections(clients)}))

    def groups_of_topic(self, peer: Peer, command: Command) -> Command:
        """300: groups that committed in a topic or subscribe to it now."""
        topic = text(command.fields, "topic")
        self._tools.authorizer.authorize(peer, command, ADMIN, topic)
        self._group_commits.flush()
        committed = {
            group for group, offsets in self._offsets.by_group().items() if any(topic == key[0] for key in offsets)
        }
        listening = {
            config.group_name for config in self._groups if self._clients.subscription(config.group_name, topic)
        }
        return command.reply(body=_encode({"groupList": sorted(committed | listening)}))

    def topics_of_group(self, peer: Peer, command: Command) -> Command:
        """343: topics a group committed in."""
        group = text(command.fields, "group")
        self._tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        self._group_commits.flush()
        topics = sorted({topic for topic, _index in self._offsets.of_group(group)})
        return command.reply(body=_encode({"topicList": topics, "brokerAddr": self._tools.identity.address}))

    def delete_group(self, peer: Peer, command: Command) -> None:
        """207: remove a group, which its next heartbeat would make anew; with `cleanOffset` its offsets too.

        Its retry and dead-letter topics stay, with what could not be consumed. Refused while a member is connected.
        """
        group = text(command.fields, "groupName")
        self._tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        if self._clients.members(group):
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the group [{group}] has members that are connected: stop them first"
            )
        self._group_commits.flush()
        removed = self._groups.delete(group)
        forgotten = self._offsets.forget(group) if flag(command.fields, "cleanOffset") else 0
        self._tools.answers.reply_at(max(removed, forgotten), peer, command.reply())

    def system_topics(self, peer: Peer, command: Command) -> Command:
        """305: the topics every broker has."""
        self._tools.authorizer.authorize(peer, command, ADMIN, "status")
        return command.reply(body=_encode({"topicList": [DEFAULT_TOPIC], "brokerAddr": self._tools.identity.address}))

    def reset_offsets(self, peer: Peer, command: Command) -> None:
        """222: move a group in a topic to an offset or a time, forwards only when it is forced or the end is meant."""
        fields = command.fields
        group, topic = text(fields, "group"), text(fields, "topic")
        self._tools.authorizer.authorize(peer, command, ADMIN, of_group(group))
        self._topics.require(topic)
        self._group_commits.flush()
        moved = self._wanted(command, group, topic)
        commits = [(group, topic, int(queue["queueId"]), offset) for queue, offset in moved]
        position = self._offsets.commit(commits) if commits else self._tools.store.confirm_position

        told = {"topic": topic, "group": group, "timestamp": fields.get("timestamp", "0"), "isForce": "true"}

        def done() -> None:
            for client in self._clients.clients_of(group):
                body, code = _moved_body(client.language, moved), Code.RESET_CONSUMER_CLIENT_OFFSET
                client.peer.send(Command(code, flag=FLAG_ONEWAY, fields=dict(told), body=body))
            peer.send(command.reply(body=_moved_body(command.language, moved)))

        self._tools.answers.when_confirmed(position, peer, command.reply(), done)

    def _wanted(self, command: Command, group: str, topic: str) -> Moved:
        fields = command.fields
        time_ms, forced = number(fields, "timestamp", NOW), flag(fields, "isForce")
        only, given = number(fields, "queueId", NO_QUEUE), number(fields, "offset", -1)
        moved: Moved = []
        for index, queue_id in enumerate(self._topics.queue_ids(topic)):
            if only not in (NO_QUEUE, index):
                continue
            low, high = self._tools.store.reading.bounds(queue_id)
            if given >= 0:
                offset = max(low, min(given, high))
            else:
                offset = high if time_ms == NOW else self._tools.store.reading.search_time(queue_id, time_ms)
            found = self._offsets.get(group, topic, index)
            if found is not None and given < 0 and time_ms != NOW and not forced:
                offset = min(offset, found[0])
            moved.append((queue_key(self._tools.config.broker_name, topic, index), offset))
        return moved


def _moved_body(language: str, moved: Moved) -> bytes:
    """Java reads queues as keys of an object, the others a list."""
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
