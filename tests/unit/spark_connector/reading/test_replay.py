"""The clock of a replay: where it begins, how far it lets a batch go, and when it is over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey
from spark_connector.reading.bounds import BoundsWatch
from spark_connector.reading.selection import select
from spark_connector.reading.stream_reader import Replay
from tests.unit.spark_connector.toy_broker import NAME, ToyBroker

KEY = QueueKey("t", NAME, 0)
Options = Callable[..., ReadOptions]


class Now:
    """A clock for a replay."""

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms

    def __call__(self) -> int:
        return self.at_ms


@pytest.fixture
def options(read_options: Options) -> ReadOptions:
    return read_options(topic="t")


def watched(options: ReadOptions) -> tuple[BoundsWatch, dict[QueueKey, object]]:
    watch = BoundsWatch(options, select(options))
    return watch, watch.read()


def test_the_clock_runs_from_the_oldest_message_not_read(
    broker: ToyBroker, options: ReadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The toy broker stores one message a millisecond; it tells of the second offset for any time."""
    broker.publish("t", [b"x"] * 50, mqtt=False)
    watch, bounds = watched(options)
    asked: list[int] = []
    real = watch.read
    monkeypatch.setattr(watch, "read", lambda *, at_ms: asked.append(at_ms) or real(at_ms=at_ms))
    now = Now(10_000)
    replay = Replay(2.5, now)
    assert replay.cap({KEY: 20}, bounds, watch) == {KEY: 20}, "the first batch is empty"
    assert asked == []
    assert replay.cap({KEY: 20}, bounds, watch) == {KEY: 1, QueueKey("t", NAME, 1): 0}
    now.at_ms += 10
    replay.cap({KEY: 30}, bounds, watch)
    assert asked == [20, 45], "it began at message 20 and runs 2.5 times as fast"
    assert not replay.is_live
    now.at_ms += 20_000
    assert replay.cap({KEY: 30}, bounds, watch) is None
    assert replay.is_live
    now.at_ms -= 20_000
    assert replay.cap({KEY: 0}, bounds, watch) is None, "live for good"


def test_with_nothing_to_read_it_is_live_at_once(broker: ToyBroker, options: ReadOptions) -> None:
    broker.publish("t", [b"x"] * 5, mqtt=False)
    watch, bounds = watched(options)
    replay = Replay(1.0)
    replay.cap({KEY: 5}, bounds, watch)
    assert replay.cap({KEY: 5}, bounds, watch) is None
    assert replay.is_live


def test_a_broker_that_does_not_tell_holds_the_stream_where_it_is(broker: ToyBroker, options: ReadOptions) -> None:
    broker.publish("t", [b"x"] * 5, mqtt=False)
    watch, bounds = watched(options)
    broker.close()
    replay = Replay(1.0)
    replay.cap({KEY: 2}, bounds, watch)
    assert replay.cap({KEY: 2}, bounds, watch) == {KEY: 2}
    assert not replay.is_live
