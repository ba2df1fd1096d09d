"""Filters that change under a checkpoint: nothing is left out, or read twice, without a word."""

from __future__ import annotations

import pytest

from spark_connector.errors import OptionError
from spark_connector.options.read_write import parse_read
from spark_connector.reading.filters import EVERYTHING, Wanted, left_out, wanted_in, wanted_of
from spark_connector.reading.selection import select


def wanted(**options: str) -> Wanted:
    parsed = parse_read(options)
    return wanted_of(select(parsed), parsed)


def mqtt(*filters: str) -> Wanted:
    return wanted(mqttFilter=",".join(filters))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (mqtt("plant/#"), mqtt("plant/#")),
        (mqtt("plant/#"), mqtt("plant/+/temp")),
        (mqtt("plant/+/temp"), mqtt("plant/+/temp", "car/#")),
        (mqtt("#"), mqtt("plant/+", "car/#")),
        (mqtt("+/#"), mqtt("plant/#")),
        (mqtt("a/b"), mqtt("a/b", "a/c")),
        (mqtt("a/b"), mqtt("c/+")),
        (wanted(topic="t"), wanted(topic="t", tag="a")),
        (wanted(topic="t", tag="a || b"), wanted(topic="t", tag="b")),
        (wanted(topic="t", sql="a > 1"), wanted(topic="t", sql="a > 1")),
        (wanted(topic="t"), wanted(topic="t,u")),
        (wanted(topic="t"), wanted(topic="t", sql="a > 1")),
    ],
)
def test_what_gets_all_it_wants_goes_on(before: Wanted, now: Wanted) -> None:
    """Narrower filters, and those of parents that were not read before."""
    assert left_out(before, now) == ""


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (mqtt("plant/+/temp"), mqtt("plant/#"), "rows of 'plant/#'"),
        (mqtt("plant/+"), mqtt("plant/#"), "rows of 'plant/#'"),
        (mqtt("plant/+/#"), mqtt("plant/#"), "rows of 'plant/#'"),
        (mqtt("plant/1/#"), mqtt("plant/+/temp"), "rows of 'plant/+/temp'"),
        (mqtt("+/temp"), mqtt("plant/#"), "rows of 'plant/#'"),
        (mqtt("plant/+"), mqtt("+/temp"), "rows of '+/temp'"),
        (mqtt("plant/+"), wanted(topic="plant"), "left out before"),
        (wanted(topic="t", tag="a"), wanted(topic="t", tag="a || b"), "other tags"),
        (wanted(topic="t", tag="a"), wanted(topic="t"), "other tags"),
        (wanted(topic="t", sql="a > 1"), wanted(topic="t", sql="a > 0"), "'sql' left out before"),
        (wanted(topic="t", sql="a > 1"), wanted(topic="t"), "'sql' left out before"),
    ],
)
def test_older_rows_that_are_wanted_now_are_named(before: Wanted, now: Wanted, says: str) -> None:
    assert says in left_out(before, now)


@pytest.mark.parametrize(("before", "now"), [(mqtt("g/a"), mqtt("g/+")), (mqtt("g/+"), mqtt("g/a"))])
def test_a_topic_is_not_read_from_both_of_its_queues(before: Wanted, now: Wanted) -> None:
    with pytest.raises(OptionError, match="'g/a' has a queue of its own"):
        left_out(before, now)


def test_its_form_has_what_is_set() -> None:
    for one in (mqtt("a/+", "b/c"), wanted(topic="t", tag="a", sql="b > 1"), EVERYTHING):
        assert wanted_in(one.to_json()) == one
    assert wanted(topic="t").to_json() == {}
