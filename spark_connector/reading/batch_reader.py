"""`spark.read.format("rocketmq")`: one bounded read between two points, decided once on the driver.

Invariant: the ends are taken when the plan is made; what is stored later is not part of the DataFrame, however long
it is used. Thread rule: `partitions` in a driver-side process, `read` in the workers.

Filters of a batch query that spare work: which queues, which ranges of them, and what the broker can leave out.

Spark hands over a list of simple conditions that must all be true. What names topics, queues, offsets or store times
narrows the ranges before anything is read (offsets and store times rise along a queue); keys, tags, MQTT topics and
times of birth go to the broker. Invariant: a row that passes all conditions is never left out; Spark looks at every
condition again, so what is only narrowed here, or not understood, is still right. Pure.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from remoting.protocol.bodies.pull_body import NAMES_MAX, RowFilter
from remoting.protocol.records import topics
from remoting.protocol.records.names import LMQ_PREFIX
from spark_connector.brokers import patiently
from spark_connector.errors import GroupAbsent, OptionError
from spark_connector.options.option_table import EARLIEST, LATEST
from spark_connector.options.read_write import ReadOptions
from spark_connector.options.schema import ALIASES
from spark_connector.queues import QueueKey, QueueRange
from spark_connector.reading import planner
from spark_connector.reading.bounds import BoundsWatch
from spark_connector.reading.planner import ending_positions, starting_positions
from spark_connector.reading.selection import check_partitions, check_present, row_filter, select
from spark_connector.reading.task import RangePartition, check_schema, read_task, report_losses

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


TEXTS = ("topic", "broker", "key", "tag", "mqttTopic")
NUMBERS = ("queueId", "queueOffset", "bornTimestamp", "storeTimestamp")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LIGHT = LMQ_PREFIX.decode()


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from `low` (inclusive) to `high` (exclusive); None is open."""

    low: int | None = None
    high: int | None = None

    def __contains__(self, number: int) -> bool:
        return (self.low is None or number >= self.low) and (self.high is None or number < self.high)

    def within(self, other: Span) -> Span:
        """The numbers in both."""
        lows = [one for one in (self.low, other.low) if one is not None]
        highs = [one for one in (self.high, other.high) if one is not None]
        return Span(max(lows, default=None), min(highs, default=None))


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is known of the wanted rows, by column: texts they have one of, spans their numbers (times in ms) lie in."""

    texts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    spans: Mapping[str, Span] = field(default_factory=dict)

    def covers(self, key: QueueKey) -> bool:
        """Whether a queue can hold a wanted row."""
        if key.broker not in self.texts.get("broker", (key.broker,)) or key.queue not in self._span("queueId"):
            return False
        # The queue of one MQTT topic is named by that topic, its rows by the parent topic.
        return key.topic.startswith(_LIGHT) or key.topic in self.texts.get("topic", (key.topic,))

    @property
    def stored_ms(self) -> Span:
        """When the wanted rows were stored."""
        return self._span("storeTimestamp")

    def narrowed(self, work: Sequence[QueueRange]) -> list[QueueRange]:
        """The ranges without queues and offsets that no row of the query can have."""
        offsets, found = self._span("queueOffset"), []
        for one in work:
            if self.covers(one.key):
                start = one.start if offsets.low is None else max(one.start, offsets.low)
                end = one.end if offsets.high is None else min(one.end, offsets.high)
                if start < end:
                    found.append(replace(one, start=start, end=end))
        return found

    def at_the_broker(self, row_filter: RowFilter) -> RowFilter | None:
        """The query's own filter and what of the conditions the broker can judge; None when no row can pass both."""
        born = self._span("bornTimestamp")
        found = msgspec.structs.replace(row_filter, born_from_ms=born.low, born_until_ms=born.high)
        for column, name in (("key", "keys"), ("tag", "tags")):
            wanted = self.texts.get(column)
            if wanted is not None and len(wanted) <= NAMES_MAX:
                own = frozenset(getattr(row_filter, name))
                both = wanted & own if own else wanted
                if not both:
                    return None
                found = msgspec.structs.replace(found, **{name: tuple(sorted(both))})
        return self._with_topics(found)

    def _with_topics(self, row_filter: RowFilter) -> RowFilter | None:
        wanted = self.texts.get("mqttTopic")
        if wanted is None or len(wanted) > NAMES_MAX:
            return row_filter
        valid = [topic for topic in sorted(wanted) if not topics.validate_topic_name(topic)]
        if row_filter.mqtt:
            valid = [topic for topic in valid if any(topics.matches(one, topic) for one in row_filter.mqtt)]
        return msgspec.structs.replace(row_filter, mqtt=tuple(valid)) if valid else None

    def _span(self, column: str) -> Span:
        return self.spans.get(column, Span())


def conditions_of(filters: Iterable[Filter]) -> Conditions:
    """What a list of filters, all of which must be true, demands of single columns."""
    texts: dict[str, frozenset[str]] = {}
    spans: dict[str, Span] = {}
    for one in filters:
        column = _column(one)
        if column in TEXTS:
            values = _texts(one)
            if values is not None:
                texts[column] = texts.get(column, values) & values
        elif column in NUMBERS:
            span = _span_of(one)
            if span is not None:
                spans[column] = spans.get(column, Span()).within(span)
    return Conditions(texts, spans)


def _column(one: Filter) -> str:
    """The column a filter is about; empty for a part of one."""
    path: Sequence[str] = getattr(one, "attribute", ())
    return ALIASES.get(path[0], path[0]) if len(path) == 1 else ""


def _texts(one: Filter) -> frozenset[str] | None:
    """The values a text must be one of; None when the filter does not restrict it."""
    values: Sequence[Any]
    if isinstance(one, EqualTo | EqualNullSafe):
        values = [one.value]
    elif isinstance(one, In):
        values = [value for value in one.value if value is not None]
    else:
        return None
    return frozenset(values) if all(isinstance(value, str) for value in values) else None


def _span_of(one: Filter) -> Span | None:
    """The numbers, or the times in ms, that a filter leaves; None when it does not restrict them."""
    if isinstance(one, In):
        edges = [_edges(value) for value in one.value if value is not None]
        known = [edge for edge in edges if edge is not None]
        return Span(min(low for low, _ in known), max(high for _, high in known)) if known == edges and known else None
    edge = _edges(getattr(one, "value", None))
    if edge is None or isinstance(one, StringStartsWith):
        return None
    first, behind = edge
    spans: dict[type, Span] = {
        EqualTo: Span(first, behind),
        EqualNullSafe: Span(first, behind),
        GreaterThanOrEqual: Span(first, None),
        GreaterThan: Span(behind, None),
        LessThan: Span(None, first),
        LessThanOrEqual: Span(None, behind),
    }
    return spans.get(type(one))


def _edges(value: object) -> tuple[int, int] | None:
    """The first whole number (ms) that is not below a value, and the first above it; None for what is no number."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        micros = (value - _EPOCH) // dt.timedelta(microseconds=1)
        return -(-micros // 1000), micros // 1000 + 1
    return (value, value + 1) if isinstance(value, int) and not isinstance(value, bool) else None


class PushFilters:
    """What Spark calls as `reader.pushFilters`, where that is switched on.

    A reader that overrides the method fails every batch read while `spark.sql.python.filterPushdown.enabled` is off,
    which it is by default; Spark knows by `__func__` whether it was overridden. This object shows that it was not.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, found: list[Filter]) -> None:
        self._found = found

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note all filters; all are handed back, so that Spark checks them again."""
        self._found += filters
        return filters


def _check_points(options: ReadOptions) -> None:
    """Raise OptionError for a beginning or an end behind or before which a batch could have no row."""
    for name, point, wrong in (
        ("startingOffsets", options.starting_offsets, LATEST),
        ("endingOffsets", options.ending_offsets, EARLIEST),
    ):
        if point is not None and (wrong in point.named.values() or (not point.named and point.default == wrong)):
            text = "latest: a batch that begins" if wrong == LATEST else "earliest: a batch that ends"
            raise OptionError(f"option {name!r} = {text} there has no rows")


class RocketMQBatchReader(DataSourceReader):
    """Plans and reads a bounded range of every selected queue."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        self._stage = check_schema(schema, options)
        _check_points(options)
        self._schema = schema
        self._options = options
        self._selection = select(options)
        self._row_filter = row_filter(self._selection, options)
        self._pushed: list[Filter] = []
        self.pushFilters = PushFilters(self._pushed)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        """Decide the range of every queue and cut the whole into tasks."""
        options, watch = self._options, BoundsWatch(self._options, self._selection)
        patiently(watch.find_groups, options, GroupAbsent)
        bounds = patiently(watch.complete, options)
        check_present(self._selection, bounds)
        check_partitions(self._options, bounds)
        start = starting_positions(options, self._selection, bounds, lambda ms: watch.read(at_ms=ms), EARLIEST)
        end = ending_positions(options, self._selection, bounds, lambda ms: watch.read(at_ms=ms), LATEST)
        conditions = conditions_of(self._pushed)
        self._narrow_by_time(conditions, watch, start, end)
        work, lost = planner.ranges(start, end, bounds)
        report_losses(
            list(dict.fromkeys([*planner.losses(start, bounds), *planner.losses(end, bounds), *lost])), options
        )
        wanted = conditions.at_the_broker(self._row_filter)
        pieces = planner.tasks(
            [] if wanted is None else conditions.narrowed(work),
            cores=os.cpu_count() or 1,
            partitions_min=options.min_partitions,
            records_max=options.max_records_per_partition,
        )
        short_cuts = watch.short_cuts
        return [RangePartition(piece, watch.addresses, short_cuts, turn) for turn, piece in enumerate(pieces)]

    def _narrow_by_time(
        self, conditions: Conditions, watch: BoundsWatch, start: dict[QueueKey, int], end: dict[QueueKey, int]
    ) -> None:
        """Move both ends to what was stored in the time that is wanted: what lies outside never leaves the broker."""
        stored = conditions.stored_ms
        for moment, points, nearer in ((stored.low, start, max), (stored.high, end, min)):
            if moment is not None:
                answered = watch.read(at_ms=max(0, moment))
                for key in points:
                    at = answered[key].at if key in answered else None
                    points[key] = points[key] if at is None else nearer(points[key], at)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        # Whatever `partitions` notes on this object is not seen here: the tasks may have it as it was before.
        wanted = conditions_of(self._pushed).at_the_broker(self._row_filter)
        return read_task(partition, self._schema, wanted or self._row_filter, self._options, self._stage)
