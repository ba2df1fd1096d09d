"""Progress reports reach the broker that holds the queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_connector.errors import BrokerUnreachable
from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey
from spark_connector.reading.bounds import BoundsWatch
from spark_connector.reading.selection import select
from spark_connector.reading.stream_reader import commit_progress
from tests.unit.spark_connector.toy_broker import NAME, ToyBroker


def test_every_queue_of_the_broker(broker: ToyBroker, read_options: Callable[..., ReadOptions]) -> None:
    broker.publish("t", [b"x"], mqtt=False)
    options = read_options(topic="t")
    watch = BoundsWatch(options, select(options))
    positions = {QueueKey("t", NAME, 0): 1, QueueKey("t", NAME, 1): 2, QueueKey("t", "elsewhere", 0): 3}
    commit_progress("g", positions, watch)
    assert broker.offsets == {("g", "t", 0): 1, ("g", "t", 1): 2}
    broker.close()
    with pytest.raises(BrokerUnreachable):
        commit_progress("g", positions, watch)
