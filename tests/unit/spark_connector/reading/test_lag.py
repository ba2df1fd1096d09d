"""Lag of a source: what the reader reports under a limit, and what a listener makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from spark_connector.listener import QueueLag, behind_latest, lost_messages, queue_lags
from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey
from spark_connector.reading.bounds import QUEUES_ASKED_MAX, BoundsWatch, waiting_ms
from spark_connector.reading.offsets import StreamOffset, to_json
from spark_connector.reading.selection import Bounds, select
from tests.unit.spark_connector.toy_broker import NAME, ToyBroker

KEY, OTHER = QueueKey("t", NAME, 0), QueueKey("t", NAME, 1)


def text(positions: dict[QueueKey, int], waiting: dict[QueueKey, int] | None = None) -> str:
    return json.dumps(to_json(StreamOffset(positions, waiting_ms=waiting)))


def test_messages_and_seconds_by_queue() -> None:
    lags = queue_lags(text({KEY: 5, OTHER: 3}), text({KEY: 9, OTHER: 3}, {KEY: 1_500}))
    assert lags == [QueueLag(KEY, 4, 1.5), QueueLag(OTHER, 0, 0.0)]
    assert behind_latest(lags) == {"avg": 2.0, "max": 4.0, "min": 0.0}
    assert queue_lags(text({}), text({KEY: 2})) == [QueueLag(KEY, 2, None)]
    assert behind_latest([]) == {"avg": 0.0, "max": 0.0, "min": 0.0}


@pytest.mark.parametrize(
    ("end", "latest"), [(None, None), ("12", "13"), ('{"logOffset":3}', "null"), ("{", "{}"), ("[]", "[1]")]
)
def test_other_sources_have_no_lag(end: str | None, latest: str | None) -> None:
    assert queue_lags(end, latest) == []


def test_how_long_the_first_message_left_over_has_been_stored(
    broker: ToyBroker, read_options: Callable[..., ReadOptions]
) -> None:
    """The toy broker's store times are the numbers of its messages."""
    broker.publish("t", [b"x"] * 8, mqtt=False)
    options = read_options(topic="t")
    watch = BoundsWatch(options, select(options))
    bounds = watch.read()
    assert waiting_ms({KEY: 5, OTHER: 0}, bounds, watch.masters, 100) == {KEY: 95}
    broker.queue("t", 0).drop_first(7)
    assert waiting_ms({KEY: 5}, watch.read(), watch.masters, 100) == {KEY: 93}
    asked = len(broker.requests)
    assert waiting_ms({KEY: 8}, bounds, watch.masters, 100) == {}
    assert len(broker.requests) == asked
    broker.close()
    assert waiting_ms({KEY: 5}, bounds, watch.masters, 100) == {}


def test_only_the_queues_furthest_behind_are_asked(broker: ToyBroker, read_options: Callable[..., ReadOptions]) -> None:
    broker.publish("t", [b"x"] * 8, mqtt=False)
    options = read_options(topic="t")
    watch = BoundsWatch(options, select(options))
    real = watch.read()[KEY]
    bounds = {QueueKey("t", NAME, n): Bounds(real.id, 0, n + 1, None) for n in range(QUEUES_ASKED_MAX + 3)}
    found = waiting_ms(dict.fromkeys(bounds, 0), bounds, watch.masters, 100)
    assert {key.queue for key in found} == set(range(3, QUEUES_ASKED_MAX + 3))


def test_expired_messages_are_in_the_report() -> None:
    """As the source wrote it; other sources and reports without it have lost nothing."""
    form = to_json(StreamOffset({QueueKey("t", "b", 0): 9}, lost=4))
    assert lost_messages(json.dumps(form)) == 4
    assert lost_messages(json.dumps(form | {"lost": 0})) == 0
    for other in (None, "", "{}", "nonsense", "7"):
        assert lost_messages(other) == 0
