"""One `lightmq up` and one Spark session for all scenarios, because starting them is expensive.

Invariant: a scenario uses topics of its own, because the log is shared and the scenarios run in any order.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from tests.interop.spark_scenario import Frames, Publish

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """`lightmq up` on free ports; yields the ports by protocol."""
    data = tmp_path_factory.mktemp("data")
    command = [sys.executable, "-m", "lightmq", "up", "--json", "--data", str(data)]
    command += ["--mqtt-port", "0", "--remoting-port", "0", "--admin-port", "0"]
    with (data / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT)
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        process.wait(20)


@pytest.fixture(scope="session")
def server(ports: dict[str, int]) -> str:
    """host:port of the remoting port."""
    return f"127.0.0.1:{ports['remoting']}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One session for the whole run."""
    from lightmq.spark import session

    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    found = session("tests", master="local[2]", conf={"spark.sql.warehouse.dir": warehouse})
    found.sparkContext.setLogLevel("OFF")
    yield found
    found.stop()


@pytest.fixture
def publish(server: str) -> Publish:
    """Store numbered messages and return when they are confirmed."""

    def store(topic: str, span: range) -> None:
        entries = [image.encode_mqtt_image(topic.encode(), b"%d" % n, 1, 0, b"test") for n in span]
        with BlockingConnection.dial(server) as connection:
            reply = connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(entries)))
        assert reply.code == 0, reply.remark

    return store


@pytest.fixture
def load(spark: Any, server: str) -> Frames:
    """`load(mqttFilter=...)` for a batch, `load(stream=True, ...)` for a stream."""

    def make(*, stream: bool = False, **options: str) -> Any:
        reader = (spark.readStream if stream else spark.read).format("rocketmq").options(nameServer=server, **options)
        return reader.load()

    return make
