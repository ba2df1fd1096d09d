"""Broker groups that are away, and one that joins, under real Spark: reads, a replayed write, rows, a running query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.rig import no_traceback
from tests.processes.test_groups_away import ROWS, SOON, Groups

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]
AWAY = "broker group 'group-a' has no master"


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    made = Groups(tmp_path)
    try:
        made.start("group-a", "both", "one")
        made.start("group-b", "both")
        yield made
        no_traceback(*made.brokers.values(), made.controller)
    finally:
        made.stop()


class Frames:
    """DataFrames of numbers, to and from the groups."""

    def __init__(self, spark: Any, groups: Groups) -> None:
        self._spark = spark
        self._groups = groups

    def read(self, **given: object) -> list[int]:
        frame = self._spark.read.format("rocketmq").options(**self._groups.options(**given)).load()
        return sorted(int(row.body) for row in frame.select("body").collect())

    def write(self, first: int, **given: object) -> None:
        """ROWS numbers with keys."""
        rows = [(str(number), str(number)) for number in range(first, first + ROWS)]
        frame = self._spark.createDataFrame(rows, "body string, key string")
        frame.write.format("rocketmq").mode("append").options(**self._groups.options(**given)).save()


def test_what_is_away_is_neither_missing_nor_elsewhere(spark: Any, groups: Groups) -> None:
    frames, replayed = Frames(spark, groups), {"topic": "both", "txnAppId": "app", "txnVersion": 1}
    frames.write(0, **replayed)
    frames.write(0, topic="one")
    groups.kill("group-a")
    for topic in ("both", "one"):
        with pytest.raises(Exception, match=AWAY):
            frames.read(topic=topic, **SOON)
    assert 0 < len(frames.read(topic="both", failOnDataLoss="false", **SOON)) < ROWS
    with pytest.raises(Exception, match=AWAY):
        frames.write(ROWS, topic="one", **SOON)
    with pytest.raises(Exception, match=AWAY):
        frames.write(0, **replayed, **SOON)
    groups.start("group-a")
    frames.write(0, **replayed)
    assert frames.read(topic="both") == frames.read(topic="one") == list(range(ROWS))


def test_a_group_that_joins_is_read_by_a_running_query(spark: Any, groups: Groups, tmp_path: Path) -> None:
    frames = Frames(spark, groups)
    frames.write(0, topic="both")
    seen: list[int] = []
    source = spark.readStream.format("rocketmq").options(**groups.options(topic="both", startingOffsets="earliest"))
    query = (
        source.load().select("body").writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda batch, _id: seen.extend(int(row.body) for row in batch.collect())).start()
    )  # fmt: skip
    try:
        while len(seen) < ROWS:
            assert query.isActive, query.exception()
        groups.start("group-c", "both")
        frames.write(ROWS, topic="both")
        assert any(row for row in frames.read(topic="both"))
        while len(seen) < 2 * ROWS:
            assert query.isActive, query.exception()
        assert sorted(seen) == list(range(2 * ROWS))
    finally:
        query.stop()
