"""PySpark itself against a real broker process: what is written shows up exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.interop.spark_scenario import Frames, Publish, forget_last_commit, numbers, run

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(240)]


def test_sink_exactly_once_over_restart_and_replay(load: Frames, publish: Publish, server: str, tmp_path: Path) -> None:
    publish("in/1", range(40))
    source = load(stream=True, mqttFilter="in/+", startingOffsets="earliest", maxOffsetsPerTrigger="15")
    commands = source.selectExpr("'out/1' AS mqttTopic", "body", "cast(queueOffset AS string) AS key")
    checkpoint = tmp_path / "checkpoint"
    assert len(run(commands, server, checkpoint).recentProgress) >= 3
    assert numbers(load(mqttFilter="out/1")) == list(range(40))
    forget_last_commit(checkpoint)
    publish("in/1", range(40, 50))
    run(commands, server, checkpoint)
    assert numbers(load(mqttFilter="out/1")) == list(range(50))
    assert load(mqttFilter="out/+").where("key IS NULL").count() == 0


def test_batch_write_with_versions(spark: Any, load: Frames, server: str) -> None:
    rows = spark.range(1000).selectExpr("concat('bulk/', id % 3) AS mqttTopic", "cast(id AS string) AS value")
    for version in (1, 1, 2):
        writer = (
            rows.write.format("rocketmq").mode("append").options(nameServer=server, txnAppId="a", txnVersion=version)
        )
        writer.save()
    assert numbers(load(mqttFilter="bulk/#")) == sorted(2 * list(range(1000)))
