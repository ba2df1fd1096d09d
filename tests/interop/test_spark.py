"""PySpark itself against a real broker process: reads, restarts, replays, the sink, and what bad input gets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remoting.client.blocking import BlockingConnection
from remoting.protocol import append_body
from remoting.protocol.codes import RequestCode
from remoting.protocol.commands import Command

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(240)]

Frames = Callable[..., Any]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`lightmq up` on free ports; yields host:port of the remoting port."""
    data = tmp_path_factory.mktemp("data")
    command = [sys.executable, "-m", "lightmq", "up", "--json", "--data", str(data)]
    command += ["--mqtt-port", "0", "--remoting-port", "0", "--admin-port", "0"]
    with (data / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT)
        assert process.stdout is not None
        yield f"127.0.0.1:{json.loads(process.stdout.readline())['remoting']}"
        process.send_signal(signal.SIGTERM)
        process.wait(20)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One session for the whole run: its start is what costs."""
    from lightmq.spark import session

    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    found = session("tests", master="local[2]", conf={"spark.sql.warehouse.dir": warehouse})
    found.sparkContext.setLogLevel("OFF")
    yield found
    found.stop()


@pytest.fixture
def publish(server: str) -> Callable[[str, range], None]:
    """Store numbered messages and return when they are confirmed."""

    def store(topic: str, span: range) -> None:
        entries = [append_body.encode_mqtt_entry(topic.encode(), b"%d" % n, 1, 0, b"test") for n in span]
        with BlockingConnection.dial(server) as connection:
            reply = connection.request(Command(RequestCode.APPEND_MANY, body=append_body.encode_entries(entries)))
        assert reply.code == 0, reply.remark

    return store


@pytest.fixture
def load(spark: Any, server: str) -> Frames:
    """`load(mqttFilter=...)` for a batch, `load(stream=True, ...)` for a stream."""

    def make(*, stream: bool = False, **options: str) -> Any:
        reader = (spark.readStream if stream else spark.read).format("rocketmq").options(nameServer=server, **options)
        return reader.load()

    return make


def numbers(frame: Any) -> list[int]:
    """The bodies as numbers, sorted."""
    return sorted(int(bytes(row.body)) for row in frame.select("body").collect())


def run(frame: Any, server: str, checkpoint: Path, **options: str) -> Any:
    """Run a stream into the sink until everything available now is through."""
    writer = frame.writeStream.format("rocketmq").options(nameServer=server, **options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return query


def forget_last_commit(checkpoint: Path) -> None:
    """What a driver killed between the sink's commit and its own leaves behind."""
    commits = checkpoint / "commits"
    last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


def test_batch_reads(load: Frames, publish: Callable[[str, range], None]) -> None:
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


def test_a_plain_session_needs_no_registration(publish: Callable[[str, range], None], server: str) -> None:
    publish("plain/1", range(5))
    code = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "reader = spark.read.format('rocketmq').option('mqttFilter', 'plain/+')\n"
        f"print('rows', reader.option('nameServer', '{server}').load().count())\n"
    )
    from lightmq.jvm import choose_java

    environment = {**os.environ, "JAVA_HOME": str(choose_java().home), "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert "rows 5" in finished.stdout, finished.stderr[-2000:]


def test_sink_exactly_once_over_restart_and_replay(
    load: Frames, publish: Callable[[str, range], None], server: str, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mqttFiltr": "a/#"}, "did you mean 'mqttFilter'"),
        ({"mqttFilter": "a/#/b"}, "'a/#/b' is not a valid MQTT filter"),
        ({"topic": "nobody-has-this"}, "no broker has 'nobody-has-this'"),
        ({"topic": "in", "startingOffsets": '{"in":{"0":999999}}'}, "beyond the log"),
        ({"topic": "in", "nameServer": "127.0.0.1:1", "fetchRetries": "0"}, "no answer from 127.0.0.1:1"),
    ],
)
def test_what_bad_input_gets(
    publish: Callable[[str, range], None], spark: Any, server: str, options: dict[str, str], says: str
) -> None:
    publish("in/bad", range(1))
    with pytest.raises(Exception, match=r".") as caught:
        spark.read.format("rocketmq").options(**({"nameServer": server} | options)).load().count()
    assert says in str(caught.value)
