"""Beginnings and ends of queues from offsets and times, by their precedence."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connector.errors import OptionError
from spark_connector.options.option_table import EARLIEST, LATEST
from spark_connector.options.read_write import parse_read
from spark_connector.queues import QueueKey
from spark_connector.reading.planner import ending_positions, starting_positions
from spark_connector.reading.selection import Bounds, light_key, select

A0, A1, B0 = QueueKey("a", "x", 0), QueueKey("a", "x", 1), QueueKey("b", "y", 0)
BOUNDS = {A0: Bounds(1, 10, 90), A1: Bounds(2, 0, 50), B0: Bounds(3, 5, 5)}


def at_time(ms: int) -> Mapping[QueueKey, Bounds]:
    """Offset n is stored at n ms."""
    return {key: Bounds(one.id, one.min, one.max, min(max(ms, one.min), one.max)) for key, one in BOUNDS.items()}


def starts(default: int = LATEST, **given: str) -> dict[QueueKey, int]:
    is_timed = not {"startingOffsetsByTimestamp", "startingTimestamp"}.isdisjoint(given)
    usual = {"startingOffsetsByTimestampStrategy": "latest"} if is_timed else {}
    options = parse_read({"topic": "a,b"} | usual | given)
    return starting_positions(options, select(options), BOUNDS, at_time, default)


def ends(**given: str) -> dict[QueueKey, int]:
    options = parse_read({"topic": "a,b", **given})
    return ending_positions(options, select(options), BOUNDS, at_time, LATEST)


def test_offsets() -> None:
    assert starts() == {A0: 90, A1: 50, B0: 5}
    assert starts(EARLIEST) == {A0: 10, A1: 0, B0: 5}
    assert starts(startingOffsets='{"a":{"0":20,"x":{"1":-1}}}') == {A0: 20, A1: 50, B0: 5}
    assert ends() == {A0: 90, A1: 50, B0: 5}
    assert ends(endingOffsets='{"a":{"0":20,"1":-2}}') == {A0: 20, A1: 0, B0: 5}


def test_times_take_precedence_over_offsets() -> None:
    by_queue = '{"a":{"0":30}}'
    assert starts(startingOffsetsByTimestamp=by_queue, startingOffsets="earliest") == {A0: 30, A1: 0, B0: 5}
    assert starts(startingOffsetsByTimestamp='{"a":40}') == {A0: 40, A1: 40, B0: 5}
    assert starts(startingOffsetsByTimestamp=by_queue, startingTimestamp="60") == {A0: 60, A1: 50, B0: 5}
    assert ends(endingOffsetsByTimestamp='{"a":{"x":{"1":7}}}') == {A0: 90, A1: 7, B0: 5}
    assert ends(endingTimestamp="1") == {A0: 10, A1: 1, B0: 5}


def test_a_time_nothing_was_stored_at() -> None:
    assert starts(startingOffsetsByTimestamp='{"a":{"0":99}}')[A0] == 90
    with pytest.raises(OptionError, match="queue a/x/0 has no message at or after its time"):
        starts(startingOffsetsByTimestamp='{"a":{"0":99}}', startingOffsetsByTimestampStrategy="error")
    # An empty queue has nothing that could be missed.
    assert starts(startingOffsetsByTimestamp='{"b":99}', startingOffsetsByTimestampStrategy="error")[B0] == 5
    assert parse_read({"topic": "a"}).starting_offsets_by_timestamp_strategy == "error"


@pytest.mark.parametrize(
    "given", [{"startingOffsetsByTimestamp": '{"a":{"7":1}}'}, {"startingOffsets": '{"a":{"7":1}}'}]
)
def test_queues_that_do_not_exist(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="a/7"):
        starts(**given)
    with pytest.raises(OptionError, match="the queue c, which"):
        starts(startingOffsetsByTimestamp='{"c":1}')


def test_an_mqtt_topic_is_named_as_itself() -> None:
    key = light_key("p/1", "x")
    options = parse_read({"mqttFilter": "p/1", "startingOffsets": '{"p/1":{"0":3}}'})
    assert starting_positions(options, select(options), {key: Bounds(1, 0, 9)}, at_time, LATEST) == {key: 3}


def test_times_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_connector.reading.planner.TIMES_MAX", 1)
    with pytest.raises(OptionError, match="2 different times, the limit is 1"):
        starts(startingOffsetsByTimestamp='{"a":{"0":30,"1":31}}')


@given(st.integers(0, 100), st.integers(0, 100))
def test_a_range_between_two_times_is_what_was_stored_between_them(one: int, other: int) -> None:
    low, high = min(one, other), max(one, other)
    begin, end = starts(startingTimestamp=str(low)), ends(endingTimestamp=str(high))
    for key, queue in BOUNDS.items():
        stored = [offset for offset in range(queue.min, queue.max) if low <= offset < high]
        assert list(range(begin[key], end[key])) == stored
