"""RocketMQ clients that come and go: 34 heartbeat, 35 unregister, 38 members of a group, 41/42 queue locks,
46 subscriptions that are checked.

A group is created by its first heartbeat together with its retry topic, whose route is published at once, because
clients ask for it right away. Bodies are read leniently: enums as names or numbers, missing sets as empty.

Queue locks of orderly consumers: one client of a group per queue, renewed every 20 s, free after 60 s of silence. They
are in memory only, as clients expect: after a restart every lock is free and the clients lock again. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from broker.groups.clients import GroupClient
from broker.groups.groups import retry_topic
from broker.reading.selection import TAG, selection
from broker.requests.fields import json_body, text
from remoting.access.resources import of_group
from remoting.access.rights import CONSUME
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.clients import Clients
    from broker.groups.groups import Groups
    from broker.requests.tools import RequestTools

LOCK_EXPIRY_MS = 60_000

QueueKey = tuple[str, int]
"""(topic, queue index)."""


class QueueLocks:
    """Who holds which queue for which group."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, QueueKey], tuple[str, int]] = {}

    def lock(self, group: str, queue: QueueKey, client_id: str, now_ms: int) -> bool:
        """Take or renew a queue for a client; False when another client of the group holds it."""
        holder = self._held.get((group, queue))
        if holder is not None and holder[0] != client_id and now_ms - holder[1] < LOCK_EXPIRY_MS:
            return False
        self._held[group, queue] = (client_id, now_ms)
        return True

    def unlock(self, group: str, queue: QueueKey, client_id: str) -> None:
        """Give a queue back; nothing happens when the client does not hold it."""
        holder = self._held.get((group, queue))
        if holder is not None and holder[0] == client_id:
            del self._held[group, queue]

    def expire(self, now_ms: int) -> None:
        """Forget the locks nobody renewed."""
        stale = [key for key, (_client, since) in self._held.items() if now_ms - since >= LOCK_EXPIRY_MS]
        for key in stale:
            del self._held[key]


_WATCHED_ATTRIBUTE = "client watched"
GROUPS_PER_HEARTBEAT_MAX = 1_000
"""Groups one client may name; more are refused."""


class ClientRequests:
    """What members of groups send about themselves and their locks."""

    def __init__(self, tools: RequestTools, *, groups: Groups, clients: Clients, locks: QueueLocks) -> None:
        self._tools = tools
        self._groups = groups
        self._clients = clients
        self._locks = locks

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.HEART_BEAT: self.heartbeat,
            Code.UNREGISTER_CLIENT: self.unregister,
            Code.CHECK_CLIENT_CONFIG: self.check_client,
            Code.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            Code.LOCK_BATCH_MQ: self.lock_batch,
            Code.UNLOCK_BATCH_MQ: self.unlock_batch,
        }

    def heartbeat(self, peer: Peer, command: Command) -> None:
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
            self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
            self._groups.ensure_if_room(group)
        if _WATCHED_ATTRIBUTE not in peer.attributes:
            peer.attributes[_WATCHED_ATTRIBUTE] = True
            peer.on_close(lambda _reason: self._clients.peer_closed(peer))
        client = GroupClient(client_id, peer, command.language, command.version, self._tools.clock.now_ms())
        changed = self._clients.heartbeat(client, producers, consumers)
        fields = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if changed else "false"}
        retried = [retry_topic(group) for group in consumers]
        self._tools.answers.reply_when_found(
            self._tools.store.end_position, retried, peer, command.reply(fields=fields)
        )

    def check_client(self, _peer: Peer, command: Command) -> Command:
        """46: whether a subscription is one that can be served; a client asks before it starts."""
        given = json_body(command).get("subscriptionData")
        if isinstance(given, dict):
            selection(str(given.get("subString") or "*"), str(given.get("expressionType") or TAG))
        return command.reply()

    def unregister(self, _peer: Peer, command: Command) -> Command:
        """35: a client leaves a group."""
        fields = command.fields
        self._clients.unregister(text(fields, "clientID"), fields.get("producerGroup"), fields.get("consumerGroup"))
        return command.reply()

    def consumer_list(self, peer: Peer, command: Command) -> Command:
        """38: client ids of a consumer group, sorted; SYSTEM_ERROR when it has none, as RocketMQ answers."""
        group = text(command.fields, "consumerGroup")
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        members = self._clients.members(group)
        if not members:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return command.reply(body=msgspec.json.encode({"consumerIdList": members}))

    def lock_batch(self, peer: Peer, command: Command) -> Command:
        """41: lock queues for an orderly consumer; answers those it holds now."""
        group, client_id, queues = _lock_body(command)
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        now_ms = self._tools.clock.now_ms()
        held = [queue for queue in queues if self._locks.lock(group, _queue_key(queue), client_id, now_ms)]
        return command.reply(body=msgspec.json.encode({"lockOKMQSet": held}))

    def unlock_batch(self, peer: Peer, command: Command) -> Command:
        """42: give queues back."""
        group, client_id, queues = _lock_body(command)
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        for queue in queues:
            self._locks.unlock(group, _queue_key(queue), client_id)
        return command.reply()


def _lock_body(command: Command) -> tuple[str, str, list[dict[str, Any]]]:
    body = json_body(command)
    queues = [queue for queue in body.get("mqSet") or () if isinstance(queue, dict)]
    return str(body.get("consumerGroup")), str(body.get("clientId")), queues


def _queue_key(queue: dict[str, Any]) -> tuple[str, int]:
    try:
        return str(queue["topic"]), int(queue["queueId"])
    except (KeyError, ValueError, TypeError) as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"a queue of mqSet is malformed: {error}") from error
