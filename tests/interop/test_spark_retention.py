"""A running query overtaken by retention: it fails with the exact missing offsets, or skips and counts them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from remoting.client.blocking import BlockingConnection
from remoting.protocol.bodies.pull_body import QueueBoundsRequest, decode_bounds_reply, encode_bounds_request
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from spark_connector.listener import lost_messages
from tests.processes.rig import Server

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(600)]
MIB = 1024 * 1024
SMALL = {
    "broker.store.segment_size_bytes": 4 * MIB,
    "broker.store.record_size_bytes_max": 2 * MIB,
    "broker.store.retention_size_bytes": 12 * MIB,
    "broker.limits.message_size_bytes_max": MIB,
    "broker.maintain_interval_ms": 50,
}
BODY_BYTES = 20_000
DEADLINE_S = 60.0


class Forgetful:
    """`lightmq up` that retains about 12 MiB, and one topic in it."""

    def __init__(self, data: Path) -> None:
        settings = [text for key, value in SMALL.items() for text in ("--set", f"{key}={value}")]
        self.server = Server(data, *settings)
        self.server.start()
        self.stored = 0

    def store(self, count: int) -> None:
        """Send the next numbered messages, each large enough to fill the log quickly."""
        span = range(self.stored, self.stored + count)
        entries = [image.encode_mqtt_image(b"plant/1", b"%-*d" % (BODY_BYTES, n), 1, 0, b"test") for n in span]
        self._ask(RequestCode.APPEND_MANY, b"".join(entries))
        self.stored += count

    def first_offset(self) -> int:
        """Where the queue of the topic begins now."""
        body = self._ask(RequestCode.QUEUE_BOUNDS, encode_bounds_request(QueueBoundsRequest(filter="plant/1")))
        light = decode_bounds_reply(body).light
        assert light is not None
        return light.min

    def outrun(self, offset: int) -> int:
        """Store messages until the offsets up to this one are gone and deletion has stopped; the new first offset."""
        deadline = time.monotonic() + DEADLINE_S
        while self.first_offset() <= offset:
            assert time.monotonic() < deadline, self.server.log.read_text()[-2_000:]
            self.store(50)
        before = -1
        while before != (now := self.first_offset()):
            before = now
            time.sleep(0.5)  # ten rounds of upkeep without a deletion
        return now

    def _ask(self, code: RequestCode, body: bytes) -> bytes:
        with BlockingConnection("127.0.0.1", self.server.ports["remoting"]) as connection:
            reply = connection.request(Command(code, body=body))
        assert reply.code == 0, reply.remark
        return bytes(reply.body)


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Forgetful]:
    made = Forgetful(tmp_path / "data")
    yield made
    made.server.kill_if_running()


class Held:
    """A query whose second batch is held up until released, and the rows of its batches."""

    def __init__(self, spark: Any, forgetful: Forgetful, checkpoint: Path, *, fails: bool) -> None:
        source = spark.readStream.format("rocketmq").option("mqttFilter", "plant/1")
        source = source.option("nameServer", f"127.0.0.1:{forgetful.server.ports['remoting']}")
        source = source.option("startingOffsets", "earliest").option("failOnDataLoss", str(fails).lower()).load()
        self.offsets: list[int] = []
        self.entered, self.let_go = threading.Event(), threading.Event()
        writer = source.select("queueOffset").writeStream.foreachBatch(self._batch)
        self.query = writer.option("checkpointLocation", str(checkpoint)).start()

    def _batch(self, frame: Any, _number: int) -> None:
        self.offsets += sorted(row.queueOffset for row in frame.collect())
        self.entered.set()
        assert self.let_go.wait(DEADLINE_S * 2)


@pytest.mark.parametrize("fails", [True, False])
def test_unread_offsets_that_expire(spark: Any, forgetful: Forgetful, tmp_path: Path, fails: bool) -> None:
    """While a batch is being processed, retention deletes the messages that follow."""
    forgetful.store(10)
    held = Held(spark, forgetful, tmp_path / "checkpoint", fails=fails)
    try:
        assert held.entered.wait(DEADLINE_S), held.query.exception()
        read = len(held.offsets)
        begins = forgetful.outrun(read + 100)
        held.let_go.set()
        if fails:
            with pytest.raises(StreamingQueryException) as caught:
                held.query.awaitTermination(int(DEADLINE_S))
            said = str(caught.value)
            where = "queue %LMQ%plant%2F1/broker-a/0"
            found = re.search(rf"{where}: offsets {read} to (\d+) are gone, it begins at (\d+) now", said)
            assert found is not None, said
            assert begins <= int(found[1]) + 1 == int(found[2]) <= forgetful.first_offset()
            assert "failOnDataLoss" in said
            assert held.offsets == list(range(read)), "nothing behind the gap was taken"
        else:
            held.query.processAllAvailable()
            assert held.query.exception() is None
            again = held.offsets[read]
            assert begins <= again <= forgetful.first_offset()
            assert held.offsets == [*range(read), *range(again, forgetful.stored)]
            reports = [source.latestOffset for one in held.query.recentProgress for source in one.sources]
            assert max(lost_messages(text) for text in reports) == again - read
            forgetful.store(1)
            held.query.processAllAvailable()
            assert held.offsets[-1] == forgetful.stored - 1
    finally:
        held.let_go.set()
        held.query.stop()
