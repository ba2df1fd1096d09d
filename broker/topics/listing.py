"""TOPIC_LIST (9030) and CLUSTER_STATUS (9031): what the command line shows, as JSON for people and programs.

TOPIC_LIST: `{"broker":..,"topics":[{"topic":..,"type":"SimpleCQ","queues":[..],"messages":9}]}`, a queue being
`{"queue":0,"id":1,"min":0,"max":9}`.
CLUSTER_STATUS: broker, epoch, positions, numbers of topics, sessions, filters, followers, clients, store gauges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from broker.requests.access import ADMIN, CONSUME
from broker.topics.attributes import BATCH_QUEUE, SIMPLE_QUEUE
from remoting.access.resources import of_topic
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.requests.tools import RequestTools
    from broker.topics.topics import Topics


class ListingRequests:
    """What the command line shows of the topics and of the whole broker."""

    def __init__(self, tools: RequestTools, *, topics: Topics, status: Callable[[], dict[str, Any]]) -> None:
        self._authorizer = tools.authorizer
        self._answers = tools.answers
        self._store = tools.store
        self._config = tools.config
        self._topics = topics
        self._status = status

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.TOPIC_LIST: self.topic_list,
            Code.CLUSTER_STATUS: self.cluster_status,
        }

    def topic_list(self, peer: Peer, command: Command) -> None:
        """All topics the peer may read, with the bounds of their queues."""
        topics = []
        position = 0
        for config in sorted(self._topics, key=lambda item: item.name):
            try:
                self._authorizer.authorize(peer, command, CONSUME, of_topic(config.name))
            except Refused:
                continue
            position = max(position, self._topics.position(config.name))
            topics.append(self._describe(config.name))
        body = {"broker": self._config.broker_name, "epoch": self._store.epoch, "topics": topics}
        self._answers.reply_at(position, peer, command.reply(body=msgspec.json.encode(body)))

    def cluster_status(self, peer: Peer, command: Command) -> Command:
        """This broker in numbers."""
        self._authorizer.authorize(peer, command, ADMIN, "status")
        return command.reply(body=msgspec.json.encode(self._status()))

    def _describe(self, topic: str) -> dict[str, Any]:
        queues = []
        for index, queue_id in enumerate(self._topics.queue_ids(topic)):
            low, high = self._store.bounds(queue_id)
            queues.append({"queue": index, "id": queue_id, "min": low, "max": high})
        config = self._topics.require(topic)
        return {
            "topic": topic,
            "type": BATCH_QUEUE if config.takes_batches else SIMPLE_QUEUE,
            "attributes": config.attributes,
            "queues": queues,
            "messages": sum(item["max"] - item["min"] for item in queues),
        }
