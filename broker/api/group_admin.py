"""What RocketMQ's tools ask about groups: connections (203, 204), offsets back to a time (222), who reads a topic
(300), what a group reads (343), its end (207), the topics no user made (305).

An offset that is moved is committed, and who consumes in the group now is told with 220, or it would commit its own
again. Bodies are RocketMQ's JSON. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from broker.api.access import ADMIN
from broker.api.admin import queue_key
from broker.api.fields import flag, number, text
from broker.meta.clients import Client
from broker.meta.topics import DEFAULT_TOPIC
from remoting.access.resources import of_group
from remoting.protocol import fastjson
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.commands import FLAG_ONEWAY, Command
from remoting.protocol.errors import Refused
from remoting.transport.contracts import Peer

if TYPE_CHECKING:
    from broker.api.context import Broker

NOW = -1
"""A time that means the end of the queue."""
NO_QUEUE = -1
"""Queue id of a request that means all queues."""

Moved = list[tuple[dict[str, Any], int]]
"""Queue and new offset of each queue that was moved."""

_encode = msgspec.json.encode


def consumer_connections(broker: Broker, peer: Peer, command: Command) -> Command:
    """203: who consumes in a group, and what."""
    group = text(command.fields, "consumerGroup")
    broker.authorizer.authorize(peer, command, ADMIN, of_group(group))
    clients = broker.clients.clients_of(group)
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


def producer_connections(broker: Broker, peer: Peer, command: Command) -> Command:
    """204: who produces for a group."""
    group = text(command.fields, "producerGroup")
    broker.authorizer.authorize(peer, command, ADMIN, of_group(group))
    clients = broker.clients.producers_of(group)
    if not clients:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist")
    return command.reply(body=_encode({"connectionSet": _connections(clients)}))


def groups_of_topic(broker: Broker, peer: Peer, command: Command) -> Command:
    """300: groups that committed in a topic or subscribe to it now."""
    topic = text(command.fields, "topic")
    broker.authorizer.authorize(peer, command, ADMIN, topic)
    broker.group_commits.flush()
    committed = {
        group for group, offsets in broker.offsets.by_group().items() if any(topic == key[0] for key in offsets)
    }
    listening = {config.group_name for config in broker.groups if broker.clients.subscription(config.group_name, topic)}
    return command.reply(body=_encode({"groupList": sorted(committed | listening)}))


def topics_of_group(broker: Broker, peer: Peer, command: Command) -> Command:
    """343: topics a group committed in."""
    group = text(command.fields, "group")
    broker.authorizer.authorize(peer, command, ADMIN, of_group(group))
    broker.group_commits.flush()
    topics = sorted({topic for topic, _index in broker.offsets.of_group(group)})
    return command.reply(body=_encode({"topicList": topics, "brokerAddr": broker.address}))


def delete_group(broker: Broker, peer: Peer, command: Command) -> None:
    """207: remove a group, which its next heartbeat would make anew; with `cleanOffset` its offsets too.

    Its retry and dead-letter topics stay, with what could not be consumed. Refused while a member is connected.
    """
    group = text(command.fields, "groupName")
    broker.authorizer.authorize(peer, command, ADMIN, of_group(group))
    if broker.clients.members(group):
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the group [{group}] has members that are connected: stop them first")
    broker.group_commits.flush()
    removed = broker.groups.delete(group)
    forgotten = broker.offsets.forget(group) if flag(command.fields, "cleanOffset") else 0
    broker.reply_at(max(removed, forgotten), peer, command.reply())


def system_topics(broker: Broker, peer: Peer, command: Command) -> Command:
    """305: the topics every broker has."""
    broker.authorizer.authorize(peer, command, ADMIN, "status")
    return command.reply(body=_encode({"topicList": [DEFAULT_TOPIC], "brokerAddr": broker.address}))


def reset_offsets(broker: Broker, peer: Peer, command: Command) -> None:
    """222: move a group in a topic to a time, forwards only when it is forced or the end is meant, or to an offset."""
    fields = command.fields
    group, topic = text(fields, "group"), text(fields, "topic")
    broker.authorizer.authorize(peer, command, ADMIN, of_group(group))
    broker.topics.require(topic)
    broker.group_commits.flush()
    moved = _wanted(broker, command, group, topic)
    commits = [(group, topic, int(queue["queueId"]), offset) for queue, offset in moved]
    position = broker.offsets.commit(commits) if commits else broker.store.confirm_position

    told = {"topic": topic, "group": group, "timestamp": fields.get("timestamp", "0"), "isForce": "true"}

    def done() -> None:
        for client in broker.clients.clients_of(group):
            body, code = _moved_body(client.language, moved), RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            client.peer.send(Command(code, flag=FLAG_ONEWAY, fields=dict(told), body=body))
        peer.send(command.reply(body=_moved_body(command.language, moved)))

    broker.when_confirmed(position, peer, command.reply(), done)


def _wanted(broker: Broker, command: Command, group: str, topic: str) -> Moved:
    fields = command.fields
    time_ms, forced = number(fields, "timestamp", NOW), flag(fields, "isForce")
    only, given = number(fields, "queueId", NO_QUEUE), number(fields, "offset", -1)
    moved: Moved = []
    for index, queue_id in enumerate(broker.topics.queue_ids(topic)):
        if only not in (NO_QUEUE, index):
            continue
        low, high = broker.store.bounds(queue_id)
        if given >= 0:
            offset = max(low, min(given, high))
        else:
            offset = high if time_ms == NOW else broker.store.search_time(queue_id, time_ms)
        found = broker.offsets.get(group, topic, index)
        if found is not None and given < 0 and time_ms != NOW and not forced:
            offset = min(offset, found[0])
        moved.append((queue_key(broker, topic, index), offset))
    return moved


def _moved_body(language: str, moved: Moved) -> bytes:
    """Java reads queues as keys of an object, the others a list."""
    if language == "JAVA":
        return b'{"offsetTable":' + fastjson.object_keys(moved) + b"}"
    return _encode({"offsetTable": [{**queue, "offset": offset} for queue, offset in moved]})


def _connections(clients: Iterable[Client]) -> list[dict[str, Any]]:
    return [
        {
            "clientId": client.client_id,
            "clientAddr": client.peer.address,
            "language": client.language,
            "version": client.version,
        }
        for client in clients
    ]
