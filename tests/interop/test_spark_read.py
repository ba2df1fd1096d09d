"""PySpark itself against a real broker process: batch and stream reads, and errors for bad input."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from tests.interop.spark_scenario import Frames, Publish, numbers

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(240)]


def messages_out(ports: dict[str, int]) -> int:
    """How many messages the broker has sent to consumers so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{ports['admin']}/metrics", timeout=10) as answer:
        (count,) = re.findall(r"^rocketmq_messages_out_total (\S+)", answer.read().decode(), re.MULTILINE)
    return int(float(count))


def test_batch_reads(load: Frames, publish: Publish) -> None:
    publish("batch/1/a", range(30))
    publish("batch/2/a", range(30, 50))
    publish("batch/2/b", range(50, 60))
    assert numbers(load(mqttFilter="batch/+/a")) == list(range(50))
    assert numbers(load(mqttTopic="batch/2/b", columns="body")) == list(range(50, 60))
    assert numbers(load(topic="batch", maxRecordsPerPartition="7")) == list(range(60))
    row = load(mqttFilter="batch/1/a").orderBy("queueOffset").first()
    assert (row.topic, row.mqttTopic, row.clientId, row.qos, row.retained) == ("batch", "batch/1/a", "test", 1, False)
    assert row.properties == {"originMqttTopic": "batch/1/a", "clientId": "test"}
    assert load(mqttFilter="batch/none").count() == 0


def test_a_plain_session_needs_no_registration(publish: Publish, server: str) -> None:
    publish("plain/1", range(5))
    code = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "reader = spark.read.format('rocketmq').option('mqttFilter', 'plain/+')\n"
        f"print('rows', reader.option('nameServer', '{server}').load().count())\n"
    )
    from lightmq.spark_session import choose_java

    environment = {**os.environ, "JAVA_HOME": str(choose_java().home), "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert "rows 5" in finished.stdout, finished.stderr[-2000:]


def test_a_stream_by_pattern_waits_for_enough_rows(load: Frames, publish: Publish, tmp_path: Path) -> None:
    """The engine applies the minimum of rows, holds the second batch back, and releases it after the delay."""
    publish("pattern-a/1", range(4))
    source = load(
        stream=True,
        subscribePattern="pattern-.",
        startingOffsets="earliest",
        minOffsetsPerTrigger="1000",
        maxTriggerDelay="3s",
    )
    writer = source.writeStream.format("memory").queryName("by_pattern")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        publish("pattern-b/1", range(4, 9))
        seen = source.sparkSession.table("by_pattern")
        while seen.count() < 9:  # what is held back does not count as available
            query.processAllAvailable()
        assert numbers(seen) == list(range(9))
        sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
        assert sizes == [4, 5]
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mqttFiltr": "a/#"}, "did you mean 'mqttFilter'"),
        ({"mqttFilter": "a/#/b"}, "'a/#/b' is not a valid MQTT filter"),
        ({"topic": "nobody-has-this"}, "no broker has 'nobody-has-this'"),
        ({"topic": "refused", "startingOffsets": '{"refused":{"0":999999}}'}, "beyond the log"),
        ({"assign": '{"refused": [99]}'}, "option 'assign' names the queue refused/99"),
        ({"topic": "refused", "sql": "speed >"}, "option 'sql' = 'speed >': SQL expression"),
        ({"topic": "refused", "nameServer": "127.0.0.1:1", "fetchRetries": "0"}, "no answer from 127.0.0.1:1"),
    ],
)
def test_what_bad_input_gets(publish: Publish, spark: Any, server: str, options: dict[str, str], says: str) -> None:
    publish("refused/1", range(1))
    with pytest.raises(Exception, match=r".") as caught:
        spark.read.format("rocketmq").options(**({"nameServer": server} | options)).load().count()
    assert says in str(caught.value)


def test_filters_are_pushed_and_reads_work_without(
    load: Frames, publish: Publish, spark: Any, ports: dict[str, int]
) -> None:
    """The same rows with filter pushdown on and off; with it the broker sends only matching messages."""
    publish("pushed/1/a", range(200))
    publish("pushed/2/a", range(200, 300))
    switch = "spark.sql.python.filterPushdown.enabled"
    found, sent = {}, {}
    before = spark.conf.get(switch)
    try:
        for state in ("false", "true"):
            spark.conf.set(switch, state)
            whole = load(topic="pushed")
            counted = messages_out(ports)
            part = whole.where("mqttTopic = 'pushed/1/a' AND queueOffset < 50 AND storeTimestamp > '2020-01-01'")
            found[state] = numbers(part)
            sent[state] = messages_out(ports) - counted
    finally:
        spark.conf.set(switch, before)
    assert found["false"] == found["true"] == list(range(50))
    assert (sent["false"], sent["true"]) == (300, 50)


def test_broker_side_filters_of_a_stream(load: Frames, publish: Publish, server: str, tmp_path: Path) -> None:
    entries = [
        image.encode_image(
            flags=0, queue_index=0, born_ms=n, topic=b"chosen", keys=b"", tags=b"odd" if n % 2 else b"even",
            body=b"%d" % n, properties=[(b"n", b"%d" % n)],
        )
        for n in range(40)
    ]  # fmt: skip
    with BlockingConnection.dial(server) as connection:
        reply = connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(entries)))
    assert reply.code == 0, reply.remark
    source = load(stream=True, topic="chosen", subExpression="odd", sql="n >= 30", startingOffsets="earliest")
    writer = source.writeStream.format("memory").queryName("chosen").trigger(availableNow=True)
    assert writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(60)
    assert numbers(source.sparkSession.table("chosen")) == [31, 33, 35, 37, 39]
