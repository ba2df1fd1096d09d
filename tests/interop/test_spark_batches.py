"""PySpark and batch topics against a real broker: reading what a producer or a sink stored, from any offset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from remoting.client.admin import topic_fields
from remoting.client.batching import Message, ProducerSettings
from remoting.client.blocking import BlockingConnection, checked
from remoting.client.threads import Producer
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_image
from tests.interop.spark_scenario import Frames, forget_last_commit, run

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(240)]


def make_topic(server: str, name: str, queues: int = 2) -> None:
    with BlockingConnection.dial(server) as connection:
        fields = topic_fields(name, queues, attributes={"queue.type": "BatchCQ"})
        checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields)))


def bodies(frame: Any) -> list[int]:
    return sorted(int(bytes(row.body)) for row in frame.select("body").collect())


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_what_a_producer_batched_is_what_spark_reads(load: Frames, server: str, codec: str) -> None:
    name = f"produced-{codec}"
    make_topic(server, name)
    settings = ProducerSettings(codec=codec, batch_count_max=700, linger_ms=1_000)
    with Producer(server, settings) as source:
        sent = [
            source.send(
                Message(
                    topic=name, body=b"%d" % n, key=f"k{n % 9}", tag="t" if n % 2 else "", born_ms=1_000 + n,
                    properties={"n": str(n), "clientId": "me"} if n % 3 else {},
                )
            )
            for n in range(5_000)
        ]  # fmt: skip
        source.flush()
        places = [future.result() for future in sent]
    with BlockingConnection.dial(server) as connection:
        alone = encode_image(flags=0, queue_index=0, born_ms=5, topic=name.encode(), body=b"5000")
        checked(connection.request(Command(RequestCode.APPEND_MANY, body=b"".join([alone]))))
    frame = load(topic=name)
    rows = {(row.queueId, row.queueOffset): row for row in frame.collect()}
    assert len(rows) == 5_001
    for n, place in enumerate(places):
        row = rows[place.queue, place.offset]
        assert (bytes(row.body), row.key, row.tag, row.topic) == (b"%d" % n, f"k{n % 9}", "t" if n % 2 else None, name)
        assert row.properties == ({"n": str(n), "clientId": "me"} if n % 3 else {})
        assert (row.clientId, row.mqttTopic, row.qos) == ("me" if n % 3 else None, None, None)
        assert round(row.bornTimestamp.timestamp() * 1000) == 1_000 + n
    middle = {name: {"0": 3, "1": 711}}
    end = {name: {"0": 1_500, "1": 713}}
    part = load(topic=name, startingOffsets=json.dumps(middle), endingOffsets=json.dumps(end))
    found = sorted((row.queueId, row.queueOffset) for row in part.collect())
    assert found == [*((0, offset) for offset in range(3, 1_500)), (1, 711), (1, 712)]


def test_a_sink_writes_batches_exactly_once(spark: Any, load: Frames, server: str, tmp_path: Path) -> None:
    make_topic(server, "batch-in")
    make_topic(server, "batch-out")
    options = {"nameServer": server, "topic": "batch-in", "batchCodec": "lz4", "batchRows": "300"}
    rows = spark.range(0, 3_000, 1, 2).selectExpr(
        "cast(id AS string) AS value", "concat('k', id) AS key", "map('n', cast(id AS string)) AS properties"
    )
    for version in (1, 1):
        writer = rows.write.format("rocketmq").mode("append").options(**options, txnAppId="batches", txnVersion=version)
        writer.save()
    assert bodies(load(topic="batch-in")) == list(range(3_000))
    assert load(topic="batch-in").where("key = concat('k', properties['n'])").count() == 3_000
    source = load(stream=True, topic="batch-in", startingOffsets="earliest", maxOffsetsPerTrigger="1100")
    copied = source.selectExpr("body", "key")
    checkpoint = tmp_path / "checkpoint"
    sink = {"topic": "batch-out", "batchCodec": "zstd"}
    assert len(run(copied, server, checkpoint, **sink).recentProgress) >= 3
    assert bodies(load(topic="batch-out")) == list(range(3_000))
    forget_last_commit(checkpoint)
    run(copied, server, checkpoint, **sink)
    assert bodies(load(topic="batch-out")) == list(range(3_000))


def test_a_topic_of_single_messages_takes_no_batches(spark: Any, server: str) -> None:
    with BlockingConnection.dial(server) as connection:
        checked(connection.request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=topic_fields("singles", 1))))
    rows = spark.range(10).selectExpr("cast(id AS string) AS value")
    with pytest.raises(Exception, match="takes no batches"):
        rows.write.format("rocketmq").mode("append").options(
            nameServer=server, topic="singles", batchCodec="lz4"
        ).save()
