"""Keys and queue numbers of written rows, with a real broker: a key has one queue and its rows keep their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remoting.client.admin import topic_fields
from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.names import queue_of
from remoting.transport.failures import checked
from spark_connector.batch_writer import BatchWriter
from tests.interop.spark_scenario import Frames, Publish, run

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(240)]
QUEUES = 4
ROWS, KEYS = 600, 30


def make_topic(server: str, name: str, *, batches: bool = False) -> None:
    """A topic of four queues."""
    fields = topic_fields(name, QUEUES, attributes={"queue.type": "BatchCQ"} if batches else None)
    with BlockingConnection.dial(server) as connection:
        checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)))


def check_order(load: Frames, topic: str, queues: int = QUEUES) -> None:
    """Every key is in the queue of its hash, its rows in their order."""
    rows = load(topic=topic).select("key", "queueId", "queueOffset", "body").collect()
    assert len(rows) == ROWS
    for key in {row.key for row in rows}:
        own = sorted((row.queueOffset, int(bytes(row.body)), row.queueId) for row in rows if row.key == key)
        assert {queue for _, _, queue in own} == {queue_of(key.encode(), queues)}
        assert [number for _, number, _ in own] == sorted(number for _, number, _ in own)
    assert len({row.queueId for row in rows}) == queues


def keyed(spark: Any) -> Any:
    """Rows of thirty keys in one partition, so that they have an order."""
    return spark.range(0, ROWS, 1, 1).selectExpr(
        f"concat('device-', id % {KEYS}) AS key", "cast(id AS string) AS value"
    )


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("codec", [None, "lz4"])
def test_a_key_has_one_queue_and_keeps_its_order(
    spark: Any, load: Frames, server: str, delivery: str, codec: str | None
) -> None:
    topic = f"keys-{delivery}-{codec}"
    make_topic(server, topic, batches=codec is not None)
    options = {"nameServer": server, "topic": topic, "delivery": delivery}
    if codec is not None:
        options |= {"batchCodec": codec, "batchRows": "50"}
    keyed(spark).write.format("rocketmq").mode("append").options(**options).save()
    check_order(load, topic)


def test_a_topic_that_a_write_makes(spark: Any, load: Frames, server: str) -> None:
    keyed(spark).write.format("rocketmq").mode("append").options(nameServer=server, topic="keys-new").save()
    counts = load(topic="keys-new").select("queueId").distinct().count()
    check_order(load, "keys-new", counts)


def test_streams_and_batches_of_streams(load: Frames, publish: Publish, server: str, tmp_path: Path) -> None:
    publish("keys/in", range(ROWS))
    source = load(stream=True, mqttFilter="keys/in", startingOffsets="earliest", maxOffsetsPerTrigger="250")
    rows = source.selectExpr(f"concat('device-', cast(cast(body AS string) AS int) % {KEYS}) AS key", "body")
    make_topic(server, "keys-stream")
    run(rows, server, tmp_path / "one", topic="keys-stream")
    check_order(load, "keys-stream")
    make_topic(server, "keys-each")
    writer = rows.writeStream.foreachBatch(BatchWriter("keys-each", nameServer=server, topic="keys-each"))
    query = writer.option("checkpointLocation", str(tmp_path / "two")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    check_order(load, "keys-each")


def test_a_column_chooses_the_queue(spark: Any, load: Frames, server: str) -> None:
    make_topic(server, "numbered")
    rows = spark.range(40).selectExpr("cast(id AS string) AS value", "'k' AS key", "cast(id % 4 AS int) AS partition")
    rows.write.format("rocketmq").mode("append").options(nameServer=server, topic="numbered").save()
    found = load(topic="numbered")
    assert {(row.queueId, int(bytes(row.body)) % 4) for row in found.collect()} == {(n, n) for n in range(4)}
    make_topic(server, "copied")
    found.write.format("rocketmq").mode("append").options(nameServer=server, topic="copied").save()
    assert {(row.queueId, int(bytes(row.body)) % 4) for row in load(topic="copied").collect()} == {
        (n, n) for n in range(4)
    }


def test_what_cannot_be_honoured_is_refused(spark: Any, load: Frames, server: str) -> None:
    make_topic(server, "narrow")
    rows = spark.range(4).selectExpr("cast(id AS string) AS value", "cast(id + 2 AS int) AS queueId")
    with pytest.raises(Exception, match=r"column 'queueId' holds [45], which is no queue of the topic 'narrow'"):
        rows.write.format("rocketmq").mode("append").options(nameServer=server, topic="narrow").save()
    assert load(topic="narrow").count() == 0
    with pytest.raises(Exception, match="the queue of an MQTT message follows from its topic"):
        rows.write.format("rocketmq").mode("append").options(nameServer=server, mqttTopic="narrow/1").save()
