"""TOPIC_LIST (9030) and CLUSTER_STATUS (9031): what the command line shows, as JSON for people and programs.

TOPIC_LIST: `{"broker":..,"topics":[{"topic":..,"type":"SimpleCQ","queues":[..],"messages":9}]}`, a queue being
`{"queue":0,"id":1,"min":0,"max":9}`.
CLUSTER_STATUS: broker, epoch, positions, numbers of topics, sessions, filters, followers, clients, store gauges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from broker.api.access import ADMIN, CONSUME
from broker.meta.topic_attributes import BATCH_QUEUE, SIMPLE_QUEUE
from remoting.access.resources import of_topic
from remoting.protocol.commands import Command
from remoting.protocol.errors import Refused
from remoting.transport.contracts import Peer

if TYPE_CHECKING:
    from broker.api.context import Broker

COUNTED_TOPICS_MAX = 1_000
"""With more parent topics the messages in them are not counted for the status: that would hold up everything else."""


def topic_list(broker: Broker, peer: Peer, command: Command) -> None:
    """All topics the peer may read, with the bounds of their queues."""
    topics = []
    position = 0
    for config in sorted(broker.topics, key=lambda item: item.name):
        try:
            broker.authorizer.authorize(peer, command, CONSUME, of_topic(config.name))
        except Refused:
            continue
        position = max(position, broker.topics.position(config.name))
        topics.append(_describe(broker, config.name))
    body = {"broker": broker.config.broker_name, "epoch": broker.store.epoch, "topics": topics}
    broker.reply_at(position, peer, command.reply(body=msgspec.json.encode(body)))


def cluster_status(broker: Broker, peer: Peer, command: Command) -> Command:
    """This broker in numbers."""
    broker.authorizer.authorize(peer, command, ADMIN, "status")
    return command.reply(body=msgspec.json.encode(status(broker)))


def status(broker: Broker) -> dict[str, Any]:
    """The picture of CLUSTER_STATUS and of the administration page."""
    store = broker.store
    return {
        "cluster": broker.config.cluster_name,
        "broker": broker.config.broker_name,
        "address": broker.address,
        "epoch": store.epoch,
        "confirm": store.confirm_position,
        "end": store.end_position,
        "topics": len(broker.topics),
        "sessions": len(broker.sessions),
        **_mqtt_numbers(broker),
        "filters": len(broker.filters),
        "followers": len(broker.followers),
        "clients": len(broker.clients),
        "long_polls": len(broker.long_polls),
        "staged_attempts": len(broker.stages),
        "store": store.metrics(),
        "quarantined": [{"start": each.start, "end": each.end, "reason": each.reason} for each in store.quarantined],
    }


def _mqtt_numbers(broker: Broker) -> dict[str, int]:
    """What the `$SYS` tree of a proxy shows of the whole broker."""
    sessions, bounds = broker.sessions, broker.store.bounds
    numbers = {
        "clients_total": len(sessions),
        "clients_connected": sessions.connected,
        "clients_expired": sessions.expired,
        "retained_messages": len(broker.retained),
    }
    if len(broker.topics) <= COUNTED_TOPICS_MAX:
        queues = (queue for config in broker.topics for queue in broker.topics.queue_ids(config.name))
        numbers["messages_stored"] = sum(high - low for low, high in map(bounds, queues))
    return numbers


def _describe(broker: Broker, topic: str) -> dict[str, Any]:
    queues = []
    for index, queue_id in enumerate(broker.topics.queue_ids(topic)):
        low, high = broker.store.bounds(queue_id)
        queues.append({"queue": index, "id": queue_id, "min": low, "max": high})
    config = broker.topics.require(topic)
    return {
        "topic": topic,
        "type": BATCH_QUEUE if config.takes_batches else SIMPLE_QUEUE,
        "attributes": config.attributes,
        "queues": queues,
        "messages": sum(item["max"] - item["min"] for item in queues),
    }
