"""A Spark job whose access key lacks a right fails on the driver, before any task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.store.attached.store import in_order
from tests.processes.rig import Client, Server

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(600)]
RULES = """
user etl
topic readwrite plant/#
topic write $sink/etl
topic deny-read plant/secret/#
"""
SECRET = "only-for-tests"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """`lightmq up` with an access list and a reader process."""
    listed = tmp_path / "acl"
    listed.write_text(RULES)
    readers = ["--readers", "1"] if in_order() else []
    settings = ["--set", f"broker.access_keys=etl:{SECRET}", "--set", f"broker.access_list={listed}"]
    server = Server(tmp_path / "data", *settings, *readers)
    server.start()
    yield server
    server.kill_if_running()


@pytest.fixture
def guarded(server: Server) -> dict[str, str]:
    """The options of the key `etl`."""
    return {
        "nameServer": f"127.0.0.1:{server.ports['remoting']}",
        "accessKey": "etl",
        "secretKey": SECRET,
        "brokerWaitMs": "1000",
    }


def test_what_is_not_allowed_is_said_at_planning(spark: Any, guarded: dict[str, str], tmp_path: Path) -> None:
    """Reads, the topic of a batch write, the sinks of batches and streams; what is allowed succeeds."""
    rows = spark.range(0, 100, 1, 1).selectExpr("cast(id AS string) AS body")

    def save(topic: str, **options: str) -> None:
        wanted = {**guarded, "mqttTopic": topic, "txnAppId": "etl", "txnVersion": "1", **options}
        rows.write.format("rocketmq").mode("append").options(**wanted).save()

    def stream(topic: str, sink: str, name: str) -> Any:
        source = spark.readStream.format("rocketmq").options(**guarded).option("startingOffsets", "earliest")
        moved = source.option("mqttFilter", "plant/1").load().select("body")
        writer = moved.writeStream.format("rocketmq").options(**guarded).option("mqttTopic", topic)
        writer = writer.option("sinkId", sink).option("checkpointLocation", str(tmp_path / name))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(120)
        return query

    save("plant/1")
    read = spark.read.format("rocketmq").options(**guarded).option("mqttFilter", "plant/1").load()
    assert read.count() == 100
    tasks = spark.sparkContext.statusTracker()
    before = set(tasks.getJobIdsForGroup(None))
    with pytest.raises(Exception, match=r"etl may not consume 'other/1'"):
        spark.read.format("rocketmq").options(**guarded).option("mqttFilter", "other/1").load().collect()
    with pytest.raises(Exception, match=r"etl may not publish 'other/1'"):
        save("other/1")
    with pytest.raises(Exception, match=r"etl may not publish '\$sink/foreign'"):
        save("plant/2", txnAppId="foreign")
    nameless = rows.write.format("rocketmq").mode("append").option("nameServer", guarded["nameServer"])
    with pytest.raises(Exception, match=r"anonymous may not publish 'plant/2'"):
        nameless.option("mqttTopic", "plant/2").save()
    assert set(tasks.getJobIdsForGroup(None)) == before, "no job was begun"
    with pytest.raises(Exception, match=r"etl may not publish 'other/1'"):
        stream("other/1", "etl", "wrong-topic")
    with pytest.raises(Exception, match=r"etl may not publish '\$sink/mine'"):
        stream("plant/2", "mine", "wrong-sink")


def test_a_filter_wider_than_the_rights_reads_what_may_be_read(
    spark: Any, server: Server, guarded: dict[str, str]
) -> None:
    """No row of a topic that the key may not read, whatever the filter; a wholly forbidden read is an error."""
    publisher = Client(server, "publisher")
    for topic in ("plant/1", "plant/secret/1", "other/1", "plant/2", "plant/secret", "plant"):
        publisher.publish(topic, b"m")
    publisher.close()

    def read(mqtt_filter: str) -> set[str]:
        rows = spark.read.format("rocketmq").options(**guarded).option("mqttFilter", mqtt_filter).load()
        return {row.mqttTopic for row in rows.select("mqttTopic").collect()}

    assert read("#") == read("plant/#") == {"plant/1", "plant/2", "plant"}
    assert read("+/+") == {"plant/1", "plant/2"}
    with pytest.raises(Exception, match="etl may not consume"):
        read("plant/secret/#")
