"""A query's lag in Spark's progress, in the listener and at the broker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_connector.listener import RocketMQProgressListener, progress_lags
from tests.interop.spark_scenario import Frames, Publish

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[2]


def lag_of(server: str, group: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "lightmq", "lag", group, "--json", "--server", server]
    said = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_messages_and_seconds_behind_under_a_limit(
    load: Frames, publish: Publish, spark: Any, server: str, tmp_path: Path
) -> None:
    """Three batches of ten leave a lag of 20, 10 and 0; the group's offset at the broker is one batch behind."""
    publish("lagging/1", range(30))
    listener = RocketMQProgressListener()
    spark.streams.addListener(listener)
    source = load(
        stream=True,
        mqttFilter="lagging/1",
        startingOffsets="earliest",
        maxOffsetsPerTrigger="10",
        consumerGroup="lagging",
    )
    writer = source.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).queryName("lagging")
    query = writer.start()
    try:
        query.processAllAvailable()
        batches = [each for each in query.recentProgress if each.numInputRows]
        left = [progress_lags(each) for each in batches]
        assert [sum(lag.messages for lag in lags) for lags in left] == [20, 10, 0]
        assert [lags[0].seconds is not None and lags[0].seconds > 0 for lags in left] == [True, True, False]
        (row,) = lag_of(server, "lagging")
        assert (row["topic"], row["offset"], row["end"], row["messages"]) == ("%LMQ%lagging%2F1", 20, 30, 10)
        assert row["seconds"] > 0
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        state = listener.queries()["lagging"]
        assert (state.rows, state.messages_behind) == (30, 0)
        assert b'rocketmq_spark_rows_total{query="lagging"} 30.0' in listener.exposition()
    finally:
        query.stop()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        spark.streams.removeListener(listener)
    assert listener.queries() == {}
