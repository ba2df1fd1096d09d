"""PySpark itself against a real broker process: written rows appear exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_connector.batch_writer import BatchWriter
from tests.interop.mqtt_inbox import Inbox
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


def test_a_device_sees_what_the_columns_say(spark: Any, server: str, ports: dict[str, int]) -> None:
    """QoS, retain, content type, user properties and the delay of each row, under exactly once."""
    rows = spark.sql(
        """
        SELECT concat('seen/', id) AS mqttTopic, cast(id AS string) AS body, cast(id % 3 AS int) AS qos,
            id = 1 AS retain, if(id = 2, null, concat('text/', id)) AS contentType,
            map('unit', concat('u', id), 'mqttContentType', 'lost') AS properties, if(id = 3, 1500L, null) AS delay
        FROM range(4)
        """
    )
    with Inbox(ports["mqtt"], "seen/#") as inbox:
        rows.write.format("rocketmq").mode("append").options(nameServer=server).save()
        got = inbox.take(4)
    assert got[-1].topic == "seen/3", "the delayed row comes last"
    said = {one.topic: (one.qos, one.properties.content_type, one.properties.user) for one in got}
    assert said == {
        "seen/0": (0, "text/0", [("unit", "u0")]),
        "seen/1": (1, "text/1", [("unit", "u1")]),
        "seen/2": (2, None, [("unit", "u2")]),
        "seen/3": (0, "text/3", [("delay-ms", "1500"), ("unit", "u3")]),
    }
    with Inbox(ports["mqtt"], "seen/#") as later:
        (kept,) = later.take(1)
    assert (kept.topic, kept.retain, kept.payload) == ("seen/1", True, b"1")


def test_for_each_batch_in_update_mode(load: Frames, publish: Publish, server: str, tmp_path: Path) -> None:
    """Update mode, which sinks do not support, and a batch repeated after its commit was lost."""
    publish("each/in", range(30))
    source = load(stream=True, mqttFilter="each/in", startingOffsets="earliest")
    counts = source.groupBy().count().selectExpr("'each/out' AS mqttTopic", "cast(count AS string) AS body")
    for more in (range(0), range(30, 40), range(0)):
        publish("each/in", more)
        writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.foreachBatch(BatchWriter("counts", nameServer=server)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        forget_last_commit(tmp_path / "checkpoint")
    assert numbers(load(mqttFilter="each/out")) == [30, 40]
