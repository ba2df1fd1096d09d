"""Conditions narrow and never lose: whatever Spark's filter lets through, the narrowed read has."""

from __future__ import annotations

import datetime as dt

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from remoting.protocol.bodies.pull_body import RowFilter
from spark_connector.queues import QueueKey, QueueRange
from spark_connector.reading.batch_reader import Conditions, Span, conditions_of
from spark_connector.reading.selection import light_key

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
COMPARE = {
    EqualTo: lambda one, other: one == other,
    EqualNullSafe: lambda one, other: one == other,
    GreaterThan: lambda one, other: one > other,
    GreaterThanOrEqual: lambda one, other: one >= other,
    LessThan: lambda one, other: one < other,
    LessThanOrEqual: lambda one, other: one <= other,
}


def moment(micros: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=micros)


@given(st.lists(st.tuples(st.sampled_from(sorted(COMPARE, key=str)), st.integers(0, 5_000)), max_size=3))
def test_times_are_as_exact_as_stored_times(asked: list[tuple[type, int]]) -> None:
    span = conditions_of([kind(("storeTimestamp",), moment(micros)) for kind, micros in asked]).stored_ms
    for ms in range(7):
        wanted = all(COMPARE[kind](ms * 1000, micros) for kind, micros in asked)
        assert (ms in span) == wanted


@given(
    st.lists(st.tuples(st.sampled_from(sorted(COMPARE, key=str)), st.integers(0, 12)), max_size=3),
    st.integers(0, 5),
    st.integers(5, 12),
)
def test_offsets_are_cut_exactly(asked: list[tuple[type, int]], start: int, end: int) -> None:
    work = [QueueRange(QueueKey("t", "b", 0), 1, start, end)]
    narrowed = conditions_of([kind(("queueOffset",), value) for kind, value in asked]).narrowed(work)
    kept = [offset for one in narrowed for offset in range(one.start, one.end)]
    assert kept == [n for n in range(start, end) if all(COMPARE[kind](n, value) for kind, value in asked)]


def test_queues() -> None:
    asked: list[Filter] = [In(("topic",), ("a", "b", None)), EqualTo(("brokerName",), "x"), In(("queueId",), (1, 2))]
    conditions = conditions_of(asked)
    covered = [QueueKey("a", "x", 1), QueueKey("b", "x", 2)]
    others = [QueueKey("c", "x", 1), QueueKey("a", "y", 1), QueueKey("a", "x", 0)]
    assert [key for key in covered + others if conditions.covers(key)] == covered
    assert conditions_of([EqualTo(("topic",), "p")]).covers(light_key("p/1", "x"))


def test_what_is_not_understood_is_ignored() -> None:
    for one in (
        IsNotNull(("topic",)),
        StringStartsWith(("topic",), "a"),
        EqualTo(("properties", "a"), "b"),
        EqualTo(("topic",), None),
        EqualTo(("queueId",), "1"),
        EqualTo(("storeTimestamp",), dt.datetime(2020, 1, 1)),  # noqa: DTZ001 - without a zone it says nothing
        In(("queueId",), (1, "x")),
        In(("queueId",), ()),
        EqualTo(("body",), b"x"),
    ):
        assert conditions_of([one]) == Conditions()


def test_what_the_broker_can_judge() -> None:
    own = RowFilter(mqtt=("a/+", "b/#"), tags=("x", "y"))
    conditions = conditions_of(
        [EqualTo(("tag",), "x"), In(("mqttTopic",), ("a/1", "c/1", "a/+")), EqualTo(("key",), "k")]
    )
    assert conditions.at_the_broker(own) == RowFilter(mqtt=("a/1",), tags=("x",), keys=("k",))
    assert conditions.at_the_broker(RowFilter(mqtt=("z",))) is None
    assert conditions.at_the_broker(RowFilter(tags=("z",))) is None
    born = conditions_of([GreaterThan(("bornTimestamp",), moment(5_000)), LessThan(("bornTimestamp",), moment(9_001))])
    assert born.at_the_broker(RowFilter()) == RowFilter(born_from_ms=6, born_until_ms=10)
    many = conditions_of([In(("tag",), tuple(map(str, range(20_000))))])
    assert many.at_the_broker(RowFilter()) == RowFilter()


def test_spans() -> None:
    assert Span(1, 5).within(Span(None, 3)) == Span(1, 3)
    assert 4 in Span(None, 5)
    assert 5 not in Span(2, 5)
