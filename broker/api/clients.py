"""RocketMQ clients that come and go: 34 heartbeat, 35 unregister, 38 members of a group, 41/42 queue locks,
46 subscriptions that are checked.

A group is created by its first heartbeat together with its retry topic, whose route is published at once, because
clients ask for it right away. Bodies are read leniently: enums as names or numbers, missing sets as empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from broker.api.access import CONSUME
from broker.api.fields import text
from broker.api.selection import TAG, selection
from broker.meta.clients import Client
from broker.meta.groups import retry_topic
from remoting.access.resources import of_group
from remoting.protocol import fastjson
from remoting.protocol.codes import ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.transport.contracts import Peer

if TYPE_CHECKING:
    from broker.api.context import Broker

_WATCHED_ATTRIBUTE = "client watched"
GROUPS_PER_HEARTBEAT_MAX = 1_000
"""Groups one client may name; more are refused."""


def heartbeat(broker: Broker, peer: Peer, command: Command) -> None:
    """34: note producers and consumers; answered when the groups it created are confirmed and have their routes."""
    body = json_body(command)
    client_id = str(body.get("clientID") or "")
    if not client_id:
        raise Refused(ResponseCode.INVALID_PARAMETER, "the heartbeat has no clientID")
    producers = {str(item.get("groupName")) for item in body.get("producerDataSet") or ()}
    consumers = {str(item.get("groupName")): dict(item) for item in body.get("consumerDataSet") or ()}
    if len(producers) + len(consumers) > GROUPS_PER_HEARTBEAT_MAX:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"more than {GROUPS_PER_HEARTBEAT_MAX} groups in a heartbeat")
    for group in consumers:
        broker.authorizer.authorize(peer, command, CONSUME, of_group(group))
        broker.groups.ensure_if_room(group)
    if _WATCHED_ATTRIBUTE not in peer.attributes:
        peer.attributes[_WATCHED_ATTRIBUTE] = True
        peer.on_close(lambda _reason: broker.clients.peer_gone(peer))
    client = Client(client_id, peer, command.language, command.version, broker.clock.now_ms())
    changed = broker.clients.heartbeat(client, producers, consumers)
    fields = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if changed else "false"}
    retried = [retry_topic(group) for group in consumers]
    broker.reply_found_at(broker.store.end_position, retried, peer, command.reply(fields=fields))


def check_client(_broker: Broker, _peer: Peer, command: Command) -> Command:
    """46: whether a subscription is one that can be served; a client asks before it starts."""
    given = json_body(command).get("subscriptionData")
    if isinstance(given, dict):
        selection(str(given.get("subString") or "*"), str(given.get("expressionType") or TAG))
    return command.reply()


def unregister(broker: Broker, _peer: Peer, command: Command) -> Command:
    """35: a client leaves a group."""
    fields = command.fields
    broker.clients.unregister(text(fields, "clientID"), fields.get("producerGroup"), fields.get("consumerGroup"))
    return command.reply()


def consumer_list(broker: Broker, peer: Peer, command: Command) -> Command:
    """38: client ids of a consumer group, sorted; SYSTEM_ERROR when it has none, as RocketMQ answers."""
    group = text(command.fields, "consumerGroup")
    broker.authorizer.authorize(peer, command, CONSUME, of_group(group))
    members = broker.clients.members(group)
    if not members:
        return command.reply(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
    return command.reply(body=msgspec.json.encode({"consumerIdList": members}))


def lock_batch(broker: Broker, peer: Peer, command: Command) -> Command:
    """41: lock queues for an orderly consumer; answers those it holds now."""
    group, client_id, queues = _lock_body(command)
    broker.authorizer.authorize(peer, command, CONSUME, of_group(group))
    now_ms = broker.clock.now_ms()
    held = [queue for queue in queues if broker.locks.lock(group, _queue_key(queue), client_id, now_ms)]
    return command.reply(body=msgspec.json.encode({"lockOKMQSet": held}))


def unlock_batch(broker: Broker, peer: Peer, command: Command) -> Command:
    """42: give queues back."""
    group, client_id, queues = _lock_body(command)
    broker.authorizer.authorize(peer, command, CONSUME, of_group(group))
    for queue in queues:
        broker.locks.unlock(group, _queue_key(queue), client_id)
    return command.reply()


def json_body(command: Command) -> dict[str, Any]:
    """The request's body as a JSON object, standard or as old Java clients write it; Refused when it is none."""
    try:
        body = fastjson.loads(command.body)
    except RemoteViolation as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused(ResponseCode.INVALID_PARAMETER, "the body is not a JSON object")
    return body


def _lock_body(command: Command) -> tuple[str, str, list[dict[str, Any]]]:
    body = json_body(command)
    queues = [queue for queue in body.get("mqSet") or () if isinstance(queue, dict)]
    return str(body.get("consumerGroup")), str(body.get("clientId")), queues


def _queue_key(queue: dict[str, Any]) -> tuple[str, int]:
    try:
        return str(queue["topic"]), int(queue["queueId"])
    except (KeyError, ValueError, TypeError) as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"a queue of mqSet is malformed: {error}") from error
