"""Topics as one feature: their table, their queues and which readers see, how long each keeps its messages.

TOPIC_LIST (9030) answers as JSON, for the command line:
`{"broker":..,"topics":[{"topic":..,"type":"SimpleCQ","queues":[..],"messages":9}]}`, a queue being
`{"queue":0,"id":1,"min":0,"max":9}`. With the field `limit` it is a page of at most so many queues in the order of
topics, of topics with the text `contains` or of `topic` alone, behind `after`, the `next` of the page before, which is
empty on the last; a topic may have some of its queues on one page and the rest on the next. A page costs a search and
the topics of the page, whatever the number of topics; a text is looked for in steps.

Retention of a topic: its attributes `retention.ms` and `retention.bytes` as a group of store queues, named by the
topic. The messages of a group are counted in the parent queues; the light queues of MQTT topics whose first level is
stored in this topic follow it, filters such as `plant/#` included. A filter that begins with a wildcard spans topics
and keeps the log's retention. A topic that loses its attributes, or is deleted, expires with the log again; what had
expired before stays hidden.

Invariant: every queue of a topic with attributes is in its group before the first message goes there. Loop thread only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from broker.requests import Feature, RequestTools, limit_of
from broker.store.state import state_kinds
from broker.store.state.state_tables import GroupRule
from broker.topics.sorted_names import STEP, SortedNames
from broker.topics.topics import (
    BATCH_QUEUE,
    RETENTION_BYTES,
    RETENTION_MS,
    SIMPLE_QUEUE,
    ClientQueues,
    Topics,
    VisibleQueues,
)
from remoting.access.rights import CONSUME, of_topic
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.store.log_store import LogStore
    from broker.topics.topics import Publication, TopicSettings

_SLASH = b"%2F"


class TopicRetention:
    """Keeps the store's groups of queues in step with the topic table."""

    def __init__(self, store: LogStore, topics: Topics) -> None:
        self._store = store
        self._topics = topics
        for name in store.groups.names():
            self._join(name)
        for config in topics:
            self._changed(config.name)
        topics.on_change(lambda name, _created: self._changed(name))
        store.state.subscribe(state_kinds.QUEUE, self._queue_added)

    def _changed(self, topic: str) -> None:
        groups, config, name = self._store.groups, self._topics.get(topic), topic.encode()
        rule = None if config is None else rule_of(config, self._topics.queue_ids(topic))
        if rule is None:
            groups.forget(name)
            return
        known = name in groups.rules
        groups.define(name, rule)
        if known:
            groups.join(name, rule.queues)
        else:
            self._join(name)

    def _join(self, name: bytes) -> None:
        """Add every existing queue of a topic to its group."""
        groups = self._store.groups
        groups.join(name, self._topics.queue_ids(name.decode()))
        groups.join(name, light_queues(self._store, name))

    def _queue_added(self, queue_name: bytes, value: bytes | None, _position: int) -> None:
        """Add a new light queue to the group of its topic."""
        rules = self._store.groups.rules
        if value is None or not rules or not queue_name.startswith(names.LMQ_PREFIX):
            return
        topic = topic_of(queue_name)
        if topic in rules:
            self._store.groups.join(topic, [int.from_bytes(value[:4], "little")])


def rule_of(config: TopicSettings, queues: tuple[int, ...]) -> GroupRule | None:
    """The rule in a topic's attributes; None when they set neither time nor size."""
    age_ms, size_bytes = config.attributes.get(RETENTION_MS), config.attributes.get(RETENTION_BYTES)
    if age_ms is None and size_bytes is None:
        return None
    return GroupRule(queues, None if age_ms is None else int(age_ms), int(size_bytes or 0))


def topic_of(light_queue: bytes) -> bytes:
    """The parent topic of a light queue, b"" for a name that no MQTT topic or filter gives."""
    level = light_queue[len(names.LMQ_PREFIX) :].partition(_SLASH)[0]
    try:
        return names.parent_topic(names.unescape(level))
    except RemoteViolation:
        return b""


def light_queues(store: LogStore, topic: bytes) -> list[int]:
    """Ids of the light queues whose parent is `topic`."""
    head, bar, reserved = topic.partition(b"|")
    queues = store.state.queues
    if topic == b"%":
        return queues.ids_with_prefix(names.LMQ_PREFIX + _SLASH)
    if bar and head:  # a shortened level: only the whole name is unique
        found = queues.ids_with_prefix(names.LMQ_PREFIX + head)
        return [queue for queue in found if topic_of(queues.name(queue) or b"") == topic]
    level = names.LMQ_PREFIX + (reserved if bar else topic)
    alone = store.queues.find(level)
    return queues.ids_with_prefix(level + _SLASH) + ([] if alone is None else [alone])


LIMIT_MAX = 200
"""Most queues in one page."""
BETWEEN = ":"
"""Between topic and queue in the place of a list: no topic's name has it."""
QUEUE_DIGITS_MAX = 9
COUNTED_TOPICS_MAX = 1_000
"""With more topics the status does not count the messages in them: that would block the loop."""


class _TopicPage:
    """Topics until there are enough queues."""

    def __init__(self, limit: int, after: tuple[str, int] | None) -> None:
        self.topics: list[dict[str, Any]] = []
        self.following = ""
        self._left = limit
        self._after = after

    def add(self, topic: dict[str, Any]) -> None:
        """The next topic, with those of its queues that belong here; sets `following` when there is no more room."""
        begin = self._after[1] + 1 if self._after is not None and self._after[0] == topic["topic"] else 0
        queues = topic["queues"][begin:]
        shown = queues[: self._left]
        if shown:
            self.topics.append({**topic, "queues": shown})
        self._left -= len(shown)
        if len(shown) < len(queues):
            last = (self.topics[-1]["topic"], self.topics[-1]["queues"][-1]["queue"])
            self.following = f"{last[0]}{BETWEEN}{last[1]}"


class TopicFeature(Feature):
    """The topics of a broker."""

    def __init__(self, tools: RequestTools, publication: Publication) -> None:
        """`publication`: topics that the controllers do not have yet; answers wait for it."""
        self._metrics = tools.metrics
        self.publication = publication
        limits = tools.config.limits
        self.table = Topics(
            tools.store,
            topics_max=limits.topics_max,
            per_user_max=limits.topics_per_user_max,
            asking_user=tools.asking_user,
            refused=self._refused,
        )
        self.retention = TopicRetention(tools.store, self.table)
        self.queues = ClientQueues(tools.store, self.table)
        self.hidden: set[int] = set()
        """Queues that readers never see; other features add theirs."""
        self.visible = VisibleQueues(tools.store, self.table, self.hidden)
        self.sorted = SortedNames(self._names)
        """The names of all topics, in order."""
        self.table.on_change(lambda name, _created: self._changed(name))
        self._store, self._clock = tools.store, tools.clock
        self._authorizer, self._answers, self._config = tools.authorizer, tools.answers, tools.config

    def configure(self) -> None:
        """Take over how many topics there may be."""
        self.table.topics_max = self._config.limits.topics_max
        self.table.per_user_max = self._config.limits.topics_per_user_max

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler: TOPIC_LIST."""
        return {RequestCode.TOPIC_LIST: self.topic_list}

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Drop the order of topics when nobody reads pages any more."""
        self.sorted.maintain(now_ms)
        return {}

    def _refused(self, reason: str) -> None:
        self._metrics.refused.child(reason).value += 1

    def _names(self) -> Iterator[list[bytes]]:
        names_of_all = [config.name.encode() for config in self.table]
        for begin in range(0, len(names_of_all), STEP):
            yield names_of_all[begin : begin + STEP]

    def _changed(self, name: str) -> None:
        self.sorted.changed(name.encode(), exists=self.table.get(name) is not None)

    def topic_list(self, peer: Peer, command: Command) -> None:
        """All topics the peer may read, or a page of them, with the bounds of their queues."""
        if "limit" in command.fields:
            later(peer, command, self._page(peer, command, limit_of(command, LIMIT_MAX)))
            return
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

    async def _page(self, peer: Peer, command: Command, limit: int) -> None:
        """Answer with a page."""
        contains = command.fields.get("contains", "").encode()
        name, between, index = command.fields.get("after", "").partition(BETWEEN)
        if between and not (index.isascii() and index.isdigit() and len(index) < QUEUE_DIGITS_MAX):
            raise Refused(ResponseCode.INVALID_PARAMETER, "after is no place in a list of topics")
        only = command.fields.get("topic")
        page = _TopicPage(limit, (name, int(index)) if between else None)
        found = await self.sorted.wanted(self._clock.now_ms()) if only is None else [only.encode()]
        at, examined = bisect_left(found, name.encode()), 0
        while at < len(found) and not page.following:
            topic = found[at]
            if contains in topic and self._may_read(peer, command, topic.decode()):
                page.add(self._describe(topic.decode()))
            examined += 1
            at += 1
            if examined % STEP == 0:
                await asyncio.sleep(0)
                at = bisect_right(found, topic)  # the list may have changed
        position = max((self.table.position(topic["topic"]) for topic in page.topics), default=0)
        body = {"broker": self._config.broker_name, "epoch": self._store.epoch, "topics": page.topics}
        body["next"] = page.following
        self._answers.reply_at(position, peer, command.reply(body=msgspec.json.encode(body)))

    def _may_read(self, peer: Peer, command: Command, topic: str) -> bool:
        known = self.table.get(topic) is not None
        return known and self._authorizer.allows(peer, command, CONSUME, of_topic(topic))

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
