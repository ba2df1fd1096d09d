"""What a query reads: RocketMQ topics, or MQTT filters turned into queues and a row filter.

    plant/7/temp      exact: the topic's own light queue, no row is thrown away
    plant/+/temp      the queues of the parent topic `plant`; rows are matched by the broker
    +/temp, #         the queues of every parent topic the broker reports, also those that appear later

Invariant: no message is read twice: an exact topic that a wildcard filter of the same query covers is not read on its
own. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from remoting.protocol.bodies.pull_body import QueueBoundsReply, QueueBoundsRequest, RowFilter
from remoting.protocol.records import names, topics
from spark_connector.errors import OptionError
from spark_connector.options.option_table import EVERY_QUEUE, QueueName, check_topic
from spark_connector.options.read_write import ReadOptions
from spark_connector.options.schema import nearest
from spark_connector.queues import QueueKey

EXACT_MAX = 64
"""Exact MQTT topics read from their own light queues; more are read from the queues of their parents by a filter."""
Known = Mapping[str, Mapping[str, int]]
"""Topic → queue number as text → end the driver has seen, as QUEUE_BOUNDS wants it."""


SPECIAL = {
    "$share": "is a shared subscription, which MQTT clients have; Spark shares the rows of a filter among its tasks by "
    "itself: leave `$share/` and the group out",
    "$history": "is how MQTT 3.1.1 clients ask for history; Spark has the options 'startingOffsets' and "
    "'startingTimestamp'",
    "$SYS": "is made by the MQTT server when it is asked for; read it, and the states of bridges, over MQTT",
    "$delayed": "is where MQTT clients publish to have a message later; it is in the log under its own topic",
}
"""First levels that mean something to the MQTT server, and why they cannot be read."""


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """How far one queue reaches at one moment; `id` is the broker's queue id, `at` answers a question by time."""

    id: int
    min: int
    max: int
    at: int | None = None

    @property
    def reached(self) -> int:
        """The offset of the time that was asked for; the end where nothing is as late as that."""
        return self.max if self.at is None else min(self.at, self.max)


@dataclass(frozen=True, slots=True)
class Selection:
    """The checked choice of a query."""

    topics: tuple[str, ...]
    """Parent topics (or RocketMQ topics) to ask for by name."""
    exact: tuple[str, ...]
    """MQTT topics read from their own light queues."""
    open_filters: tuple[str, ...]
    """Filters that begin with a wildcard: the broker knows which topics they cover."""
    row_filters: tuple[str, ...]
    """Filters that rows of parent queues must match; empty when every row is wanted."""
    pattern: re.Pattern[str] | None = None
    """Of the topics the broker reports only those whose whole name matches."""
    assigned: frozenset[QueueName] = frozenset()
    """Of the topics asked for by name only these queues; empty for all of them."""

    @property
    def parents(self) -> tuple[str, ...]:
        """The topics by whose routes the groups are known that have queues of it; open filters may be anywhere."""
        return tuple(dict.fromkeys([*self.topics, *map(_parent, self.exact)]))

    def requests(self, *, at_ms: int | None = None) -> list[QueueBoundsRequest]:
        """Return the questions to one broker that together cover the selection."""
        asked = [QueueBoundsRequest(topics=list(self.topics), at_ms=at_ms)] if self.topics else []
        asked += [QueueBoundsRequest(filter=one, at_ms=at_ms) for one in (*self.open_filters, *self.exact)]
        return asked

    def waiting_request(self, known: Known, wait_ms: int) -> QueueBoundsRequest:
        """Return the one question that the broker holds until anything of the selection may have moved."""
        filters = list(self.open_filters)
        if filters:
            one = filters[0] if len(filters) == 1 and not self.topics and not self.exact else "#"
            return QueueBoundsRequest(filter=one, known=_plain(known), wait_ms=wait_ms)
        if len(self.exact) == 1 and not self.topics:
            return QueueBoundsRequest(filter=self.exact[0], known=_plain(known), wait_ms=wait_ms)
        return QueueBoundsRequest(topics=list(self.parents), known=_plain(known), wait_ms=wait_ms)

    def is_answered_by(self, request: QueueBoundsRequest) -> bool:
        """Whether the held question alone already covers the whole selection."""
        asked = self.requests()
        return len(asked) == 1 and (asked[0].topics, asked[0].filter) == (request.topics, request.filter)

    def collect(
        self, request: QueueBoundsRequest, reply: QueueBoundsReply, keys: dict[int, QueueKey] | None = None
    ) -> dict[QueueKey, Bounds]:
        """Return the queues to read out of one answer; `keys` keeps those of the broker by its queue ids."""
        if request.filter is not None and request.filter in self.exact:
            light = reply.light
            if light is None:
                return {}
            return {light_key(request.filter, reply.broker): Bounds(light.id, light.min, light.max, light.at)}
        everything = self.pattern is None and not self.assigned
        known, found = {} if keys is None else keys, {}
        for one in reply.queues:
            if everything or self._covers(one.topic, reply.broker, one.queue):
                key = known.get(one.id)
                if key is None:
                    key = known[one.id] = QueueKey(one.topic, reply.broker, one.queue)
                found[key] = Bounds(one.id, one.min, one.max, one.at)
        return found

    def _covers(self, topic: str, broker: str, queue: int) -> bool:
        """Whether a queue of an answer is one to read."""
        if self.assigned:
            return not self.assigned.isdisjoint((QueueName(topic, broker, queue), QueueName(topic, None, queue)))
        return self.pattern is None or self.pattern.fullmatch(topic) is not None


def select(options: ReadOptions) -> Selection:
    """Check the topics or filters of the options and resolve them; raises OptionError naming the wrong one."""
    if options.topic:
        for topic in options.topic:
            check_topic(topic, "mqttFilter")
        return Selection(options.topic, (), (), ())
    if options.assign:
        assigned = tuple(sorted({one.topic for one in options.assign}))
        for topic in assigned:
            check_topic(topic, "mqttFilter", "assign")
        return Selection(assigned, (), (), (), assigned=options.assign)
    if options.topic_pattern is not None:
        return Selection((), (), ("#",), (), options.topic_pattern)
    return _select_filters(options.mqtt_filter)


def _select_filters(filters: Sequence[str]) -> Selection:
    """What MQTT filters mean."""
    for one in filters:
        wrong = topics.validate_filter(one)
        if wrong:
            raise OptionError(f"option 'mqttFilter': {one!r} is not a valid MQTT filter: {wrong}")
        _refuse_special(one)
    wild = [one for one in filters if topics.is_wildcard(one)]
    exact = [one for one in filters if not topics.is_wildcard(one)]
    exact = [one for one in exact if not any(topics.matches(filter_, one) for filter_ in wild)]
    open_filters = [one for one in wild if one.partition("/")[0] in {"+", "#"}]
    closed = [one for one in wild if one not in open_filters]
    if open_filters and exact:
        # Every parent topic is read anyway: an exact topic beside them would be read twice, so it becomes a row filter.
        closed, exact = [*closed, *exact], []
    parents = () if open_filters else tuple(dict.fromkeys(_parent(one) for one in closed))
    if len(exact) > EXACT_MAX:
        # One position per parent queue then, however many topics: their queues hold the same messages.
        closed, exact = [*closed, *exact], []
        parents = tuple(dict.fromkeys(_parent(one) for one in closed))
    if any(_parent(one) in parents for one in exact):
        closed += [one for one in exact if _parent(one) in parents]
        exact = [one for one in exact if _parent(one) not in parents]
    return Selection(parents, tuple(exact), tuple(open_filters), (*open_filters, *closed))


def _refuse_special(mqtt_filter: str) -> None:
    """Filters that mean something to the MQTT server would cover nothing in the log."""
    why = SPECIAL.get(mqtt_filter.partition("/")[0])
    if why:
        raise OptionError(f"option 'mqttFilter': {mqtt_filter!r} {why}")


def light_key(mqtt_topic: str, broker: str) -> QueueKey:
    """Return the name under which an exact topic's own queue stands in offsets."""
    return QueueKey(names.light_queue_name(mqtt_topic.encode()).decode(), broker, 0)


def check_partitions(options: ReadOptions, bounds: Mapping[QueueKey, Bounds]) -> None:
    """Raise OptionError where Kafka's columns cannot distinguish queues: a topic at several broker groups."""
    if options.schema != "kafka":
        return
    groups: dict[str, str] = {}
    for key in bounds:
        if groups.setdefault(key.topic, key.broker) != key.broker:
            raise OptionError(
                f"option 'schema' = kafka: the topic {key.topic!r} has queues at several broker groups, whose numbers "
                "are the same, and Kafka's 'partition' does not show which is meant; read it without this option"
            )


def check_present(selection: Selection, bounds: Mapping[QueueKey, Bounds]) -> None:
    """Raise OptionError for a topic or queue asked for by name that no broker has."""
    if selection.assigned:
        check_named_queues(dict.fromkeys(sorted(selection.assigned, key=str), 0), bounds, "option 'assign' names")
        return
    present = {key.topic for key in bounds}
    missing = [topic for topic in selection.topics if topic not in present]
    if missing and not selection.row_filters:
        raise OptionError(f"option 'topic': no broker has {', '.join(map(repr, missing))}; `lightmq topics` lists them")


def check_named_queues(
    named: Mapping[QueueName, int], bounds: Mapping[QueueKey, Bounds], source: str = "offsets name"
) -> None:
    """Raise OptionError for a queue in user-given offsets that does not exist."""
    present: set[tuple[str, str | None, int]] = set()
    for key in bounds:
        present |= {(key.topic, key.broker, key.queue), (key.topic, None, key.queue), (key.topic, None, EVERY_QUEUE)}
    for topic, broker, number in named:
        if (topic, broker, number) not in present:
            where = "/".join(str(part) for part in (topic, broker, number) if part not in {None, EVERY_QUEUE})
            known = sorted(map(str, bounds))
            raise OptionError(f"{source} the queue {where}, which does not exist{nearest(where, known)}")


def row_filter(selection: Selection, options: ReadOptions) -> RowFilter:
    """What rows must pass at the broker before they are sent."""
    return RowFilter(mqtt=selection.row_filters, tags=options.tag, sql=options.sql)


def _parent(mqtt_filter: str) -> str:
    return names.parent_topic(mqtt_filter.encode()).decode()


def _plain(known: Known) -> dict[str, dict[str, int]]:
    return {topic: dict(queues) for topic, queues in known.items()}
