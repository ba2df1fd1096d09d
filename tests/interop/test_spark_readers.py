"""PySpark reads through reader processes; killing them during a read fails no query."""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.store.attached.store import in_order
from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from tests.interop.spark_scenario import numbers
from tests.processes.rig import Server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not in_order(), reason="readers need a processor that keeps loads and stores in order"),
]
ROWS = 80_000
BODY = 600
"""Padding in bytes; makes each task pull several times."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`lightmq up` with two readers and a backlog of rows."""
    server = Server(tmp_path_factory.mktemp("readers") / "data", "--readers", "2")
    server.start()
    with BlockingConnection("127.0.0.1", server.ports["remoting"]) as connection:
        for first in range(0, ROWS, 2_000):
            entries = [
                image.encode_mqtt_image(b"plant/%d" % (n % 8), b"%d" % n + b" " * BODY, 1, 0, b"test")
                for n in range(first, first + 2_000)
            ]
            reply = connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(entries)))
            assert reply.code == 0, reply.remark
    until_readers(server, 2)
    yield server
    server.kill()


def metric(server: Server, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports['admin']}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def until_readers(server: Server, count: int) -> None:
    deadline = time.monotonic() + 20
    while metric(server, "rocketmq_range_readers") != count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def readers(server: Server) -> list[int]:
    assert server.process is not None
    pid = server.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def reader_of(spark: Any, server: Server, *, stream: bool = False) -> Any:
    source = (spark.readStream if stream else spark.read).format("rocketmq")
    return source.option("nameServer", f"127.0.0.1:{server.ports['remoting']}").option("mqttFilter", "plant/+")


def test_rows_come_from_the_readers(spark: Any, served: Server) -> None:
    out, ranges = metric(served, "rocketmq_messages_out_total"), metric(served, "rocketmq_range_reader_requests_total")
    assert numbers(reader_of(spark, served).load()) == list(range(ROWS))
    deadline = time.monotonic() + 10
    while metric(served, "rocketmq_messages_out_total") < out + ROWS:
        assert time.monotonic() < deadline, "the readers have not said what they sent"
        time.sleep(0.05)
    assert metric(served, "rocketmq_range_reader_requests_total") > ranges


def test_readers_are_killed_in_the_middle_of_a_read(spark: Any, served: Server) -> None:
    """Killed repeatedly while batch reads run: every row arrives once."""
    stop, killed = threading.Event(), 0

    def kill() -> None:
        nonlocal killed
        while not stop.wait(0.15):
            for pid in readers(served):
                os.kill(pid, signal.SIGKILL)
                killed += 1

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for _ in range(2):
            frame = reader_of(spark, served).option("maxRecordsPerPartition", "20000").load()
            assert numbers(frame) == list(range(ROWS))
    finally:
        stop.set()
        killer.join()
    assert killed > 2
    until_readers(served, 2)


@pytest.mark.slow
def test_a_stream_goes_on_without_any_reader(spark: Any, served: Server, tmp_path: Path) -> None:
    """Stopped readers (alive but silent) cause a pause and lose no row."""
    for pid in readers(served):
        os.kill(pid, signal.SIGSTOP)
    try:
        frame = reader_of(spark, served, stream=True).option("startingOffsets", "earliest").load()
        writer = frame.writeStream.format("memory").queryName("silent").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(120)
        assert numbers(spark.table("silent")) == list(range(ROWS))
    finally:
        for pid in readers(served):
            os.kill(pid, signal.SIGCONT)
