"""The sample of bodies behind `inferSchema`: the newest of every queue, and bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_connector.options.read_write import ReadOptions
from spark_connector.queues import QueueKey
from spark_connector.reading import sample
from spark_connector.reading.sample import newest, sample_bodies
from spark_connector.reading.selection import Bounds
from tests.unit.spark_connector.toy_broker import ToyBroker

Options = Callable[..., ReadOptions]


def test_the_sample_is_the_newest_of_every_queue() -> None:
    bounds = {QueueKey("t", "b", n): Bounds(n, 0, size) for n, size in ((0, 100), (1, 3), (2, 50))}
    ranges = {one.key.queue: (one.start, one.end) for one in newest(bounds, 43)}
    assert ranges == {1: (0, 3), 2: (30, 50), 0: (80, 100)}
    assert [one.rows for one in newest(bounds, 1)] == [1]


def test_a_sample_is_bounded_by_its_bytes(
    broker: ToyBroker, read_options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "SAMPLE_BYTES_MAX", 1)
    broker.publish("a/1", [b'{"x":1}'])
    broker.publish("b/1", [b'{"y":1}'])
    options = read_options(topic="a,b", decode="json", inferSchema="true")
    assert len(sample_bodies(options)) == 1
