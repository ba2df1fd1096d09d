"""A running query over a broker that restarts, over retention, and a `latest` query whose first batch fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from tests.interop.spark_scenario import Frames, Publish, numbers
from tests.processes.rig import Installation

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(240)]


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Installation]:
    """`lightmq up`, on the same remoting port after each restart."""
    server = Installation(tmp_path / "data")
    server.start()
    yield server
    server.kill_if_running()


def store(server: Installation, span: range) -> None:
    """Numbered messages on one MQTT topic."""
    entries = [image.encode_mqtt_image(b"plant/1", b"%d" % n, 1, 0, b"test") for n in span]
    with BlockingConnection.dial(server.address) as connection:
        reply = connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(entries)))
    assert reply.code == 0, reply.remark


def test_a_broker_that_is_killed_and_started_again_fails_no_query(
    spark: Any, own_server: Installation, tmp_path: Path
) -> None:
    store(own_server, range(100))
    source = spark.readStream.format("rocketmq").option("nameServer", own_server.address)
    source = source.option("mqttFilter", "plant/+").option("startingOffsets", "earliest").load()
    writer = source.writeStream.format("memory").queryName("outage")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        for turn in range(1, 3):
            own_server.kill()
            own_server.start()
            store(own_server, range(100 * turn, 100 * turn + 100))
            seen = spark.table("outage")
            while seen.count() < 100 * turn + 100:
                assert query.exception() is None
                query.processAllAvailable()
        assert numbers(spark.table("outage")) == list(range(300))
    finally:
        query.stop()


def test_latest_whose_first_batch_fails_loses_nothing(
    spark: Any, load: Frames, publish: Publish, tmp_path: Path
) -> None:
    """Spark logs only the end of batch 0; after a restart it asks the source again where the stream begins."""
    publish("trap/1", range(5))
    checkpoint, failed, seen = str(tmp_path / "checkpoint"), list[int](), list[int]()

    def start(each: Any, long_poll_ms: int) -> Any:
        source = load(stream=True, mqttFilter="trap/1", longPollMs=str(long_poll_ms))
        return source.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint).start()

    def fail(frame: Any, batch: int) -> None:
        failed.extend(numbers(frame))
        raise RuntimeError(f"batch {batch} fails")

    query, stored = start(fail, 30_000), 5
    while query.exception() is None:  # the broker holds the first pull until there is something new
        publish("trap/1", range(stored, stored + 1))
        stored += 1
    with pytest.raises(StreamingQueryException, match="batch 0 fails"):
        query.awaitTermination(5)
    assert failed[0] >= 5
    publish("trap/1", range(stored, stored + 5))
    again = start(lambda frame, _batch: seen.extend(numbers(frame)), 100)
    try:
        while not seen or max(seen) < stored + 4:
            assert again.exception() is None
            again.processAllAvailable()
    finally:
        again.stop()
    assert sorted(seen) == list(range(failed[0], stored + 5))
