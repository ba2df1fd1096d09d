"""Topics as one feature: their table, their queues and which readers see, how long each keeps its messages.

TOPIC_LIST (9030) answers as JSON, for the command line:
`{"broker":..,"topics":[{"topic":..,"type":"SimpleCQ","queues":[..],"messages":9}]}`, a queue being
`{"queue":0,"id":1,"min":0,"max":9}`. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from broker.requests.tools import Feature, RequestTools
from broker.topics.retention import TopicRetention
from broker.topics.topics import BATCH_QUEUE, SIMPLE_QUEUE, ClientQueues, Topics, VisibleQueues
from remoting.access.rights import CONSUME, of_topic
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.topics.publication import Publication

COUNTED_TOPICS_MAX = 1_000
"""With more topics the status does not count the messages in them: that would block the loop."""


class TopicFeature(Feature):
    """The topics of a broker."""

    def __init__(self, tools: RequestTools, publication: Publication) -> None:
        """`publication`: topics that the controllers do not have yet; answers wait for it."""
        self.publication = publication
        self.table = Topics(tools.store, topics_max=tools.config.limits.topics_max)
        self.retention = TopicRetention(tools.store, self.table)
        self.queues = ClientQueues(tools.store, self.table)
        self.hidden: set[int] = set()
        """Queues that readers never see; other features add theirs."""
        self.visible = VisibleQueues(tools.store, self.table, self.hidden)
        self._store = tools.store
        self._authorizer, self._answers, self._config = tools.authorizer, tools.answers, tools.config

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler: TOPIC_LIST."""
        return {RequestCode.TOPIC_LIST: self.topic_list}

    def topic_list(self, peer: Peer, command: Command) -> None:
        """All topics the peer may read, with the bounds of their queues."""
        topics = []
        position = 0
        for config in sorted(self.table, key=lambda item: item.name):
            try:
                self._authorizer.authorize(peer, command, CONSUME, of_topic(config.name))
            except Refused:
                continue
            position = max(position, self.table.position(config.name))
            topics.append(self._describe(config.name))
        body = {"broker": self._config.broker_name, "epoch": self._store.epoch, "topics": topics}
        self._answers.reply_at(position, peer, command.reply(body=msgspec.json.encode(body)))

    def status(self) -> dict[str, int]:
        """How many topics there are and, unless there are too many, how many messages are in them."""
        numbers = {"topics": len(self.table)}
        if len(self.table) <= COUNTED_TOPICS_MAX:
            bounds = self._store.reading.bounds
            queues = (queue for config in self.table for queue in self.table.queue_ids(config.name))
            numbers["messages_stored"] = sum(high - low for low, high in map(bounds, queues))
        return numbers

    def _describe(self, topic: str) -> dict[str, Any]:
        queues = []
        for index, queue_id in enumerate(self.table.queue_ids(topic)):
            low, high = self._store.reading.bounds(queue_id)
            queues.append({"queue": index, "id": queue_id, "min": low, "max": high})
        config = self.table.require(topic)
        return {
            "topic": topic,
            "type": BATCH_QUEUE if config.takes_batches else SIMPLE_QUEUE,
            "attributes": config.attributes,
            "queues": queues,
            "messages": sum(item["max"] - item["min"] for item in queues),
        }
