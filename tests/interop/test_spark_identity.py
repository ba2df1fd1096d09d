"""What a batch number and an offset stand for: checkpoints that went back, were replaced or copied, and other logs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from spark_connector.batch_writer import BatchWriter
from tests.interop.spark_scenario import Frames, Publish, numbers, run
from tests.processes.rig import Server

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(300)]


def copied(load: Frames, source: str, target: str) -> Any:
    """The rows of one MQTT topic for another one."""
    rows = load(stream=True, mqttFilter=source, startingOffsets="earliest")
    return rows.selectExpr(f"'{target}' AS mqttTopic", "body")


def failure(frame: Any, server: str, checkpoint: Path, **options: str) -> str:
    """What the query ends with."""
    with pytest.raises(StreamingQueryException) as caught:
        run(frame, server, checkpoint, **options)
    return str(caught.value)


def test_a_checkpoint_that_is_one_batch_old_is_refused(
    load: Frames, publish: Publish, server: str, tmp_path: Path
) -> None:
    """Its next batch has a number that was committed, and rows of its own; they may be passed over only if told so."""
    frame, checkpoint, backup = copied(load, "old/in", "old/out"), tmp_path / "checkpoint", tmp_path / "backup"
    publish("old/in", range(100))
    run(frame, server, checkpoint)
    shutil.copytree(checkpoint, backup)
    publish("old/in", range(100, 150))
    run(frame, server, checkpoint)
    publish("old/in", range(150, 220))
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    text = failure(frame, server, checkpoint)
    assert "has committed batch 1 with 50 rows, and this query writes 120 other ones under the same number" in text
    assert "restored from an older backup" in text
    assert numbers(load(mqttFilter="old/out")) == list(range(150))


@pytest.mark.slow
def test_a_new_checkpoint_under_the_name_of_an_older_one_is_refused(
    load: Frames, publish: Publish, server: str, tmp_path: Path
) -> None:
    """The last batch was the first one, too; the same with the function for foreachBatch."""
    frame = copied(load, "new/in", "new/out")
    publish("new/in", range(100))
    run(frame, server, tmp_path / "first", sinkId="job")
    each(frame, tmp_path / "third", server)
    publish("new/in", range(100, 130))
    text = failure(frame, server, tmp_path / "second", sinkId="job")
    assert "a new checkpoint under the name of an older one" in text
    with pytest.raises(StreamingQueryException, match="a new checkpoint under the name of an older one"):
        each(frame, tmp_path / "fourth", server)
    each(frame, tmp_path / "fifth", server, replayMismatch="skip")
    assert numbers(load(mqttFilter="new/out")) == sorted(2 * list(range(100)))


def each(frame: Any, checkpoint: Path, server: str, **options: str) -> None:
    """Write the rows with foreachBatch until everything available now has been written."""
    writer = frame.writeStream.foreachBatch(BatchWriter("each-job", nameServer=server, **options))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)


@pytest.mark.slow
def test_a_copied_checkpoint_is_refused_at_the_second_query(
    load: Frames, publish: Publish, server: str, tmp_path: Path
) -> None:
    """Two queries that run at once; the first one goes on."""
    publish("copy/in", range(10))
    run(copied(load, "copy/in", "copy/out"), server, tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")

    def start(name: str) -> Any:
        writer = copied(load, "copy/in", "copy/out").writeStream.format("rocketmq").options(nameServer=server)
        return writer.option("checkpointLocation", str(tmp_path / name)).start()

    first = start("one")
    publish("copy/in", range(10, 20))
    first.processAllAvailable()
    publish("copy/in", range(20, 25))
    first.processAllAvailable()
    # Of the same query id only one may be active in a session, so the second one comes when the first has gone on.
    first.stop()
    text = failure(copied(load, "copy/in", "copy/out"), server, tmp_path / "two")
    assert "this query writes" in text
    run(copied(load, "copy/in", "copy/out"), server, tmp_path / "one")
    assert numbers(load(mqttFilter="copy/out")) == list(range(25))


@pytest.fixture
def another(tmp_path: Path) -> Iterator[Server]:
    """A second `lightmq up` with a data directory of its own."""
    made = Server(tmp_path / "another")
    made.start()
    yield made
    made.kill_if_running()


def ask(server: str, code: RequestCode, body: bytes = b"", **fields: str) -> None:
    """A request that must succeed."""
    with BlockingConnection.dial(server) as connection:
        reply = connection.request(Command(code, fields=fields, body=body))
    assert reply.code == 0, reply.remark


def send(server: str, topic: str, span: range) -> None:
    """Numbered messages of a RocketMQ topic."""
    entries = [
        image.encode_image(flags=0, queue_index=0, born_ms=1, topic=topic.encode(), body=b"%d" % number)
        for number in span
    ]
    ask(server, RequestCode.APPEND_MANY, b"".join(entries))


@pytest.mark.slow
def test_a_topic_that_was_made_again_and_another_log_are_refused(
    spark: Any, server: str, another: Server, tmp_path: Path
) -> None:
    """Both have more rows than were read; without failOnDataLoss all of them are read."""
    elsewhere = f"127.0.0.1:{another.ports['remoting']}"

    def read(checkpoint: str, where: str, **options: str) -> list[int]:
        rows = spark.readStream.format("rocketmq").options(nameServer=where, topic="anew", startingOffsets="earliest")
        found: list[int] = []
        writer = rows.options(**options).load().writeStream.foreachBatch(lambda frame, _: found.extend(numbers(frame)))
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return sorted(found)

    send(server, "anew", range(50))
    assert read("one", server) == list(range(50))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    ask(server, RequestCode.DELETE_TOPIC_IN_BROKER, topic="anew")
    send(server, "anew", range(100, 180))
    with pytest.raises(StreamingQueryException, match="'anew' was deleted at broker-a and made again"):
        read("one", server)
    assert read("one", server, failOnDataLoss="false") == list(range(100, 180))
    send(elsewhere, "anew", range(200, 280))
    with pytest.raises(StreamingQueryException, match="the log of broker-a is another one than before"):
        read("two", elsewhere)
    assert read("two", elsewhere, failOnDataLoss="false") == list(range(200, 280))
