"""A Spark job whose access key may not read or write what it wants: told on the driver, before any task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.store.attached.tail_view import in_order
from tests.processes.rig import Server

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(600)]
RULES = """
user etl
topic readwrite plant/#
topic write $sink/etl
"""
SECRET = "only-for-tests"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[dict[str, str]]:
    """`lightmq up` with an access list and a reader process; the options of the key `etl`."""
    listed = tmp_path / "acl"
    listed.write_text(RULES)
    readers = ["--readers", "1"] if in_order() else []
    settings = ["--set", f"broker.access_keys=etl:{SECRET}", "--set", f"broker.access_list={listed}"]
    server = Server(tmp_path / "data", *settings, *readers)
    server.start()
    yield {
        "nameServer": f"127.0.0.1:{server.ports['remoting']}",
        "accessKey": "etl",
        "secretKey": SECRET,
        "brokerWaitMs": "1000",
    }
    server.kill_if_running()


def test_what_is_not_allowed_is_said_at_planning(spark: Any, guarded: dict[str, str], tmp_path: Path) -> None:
    """Reading, a batch write's topic, a batch write's sink, a stream's sink; and what is allowed goes through."""
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
