"""`run_forever` with real failures: a source process that is killed, and one that is slower than Spark's timeout."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from lightmq.spark import run_forever
from tests.interop.spark_scenario import Frames, Publish, numbers

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(300)]
RUNNER = b"python_streaming_source_runner"
SLOW_PYTHON = """#!/bin/sh
case "$*" in *python_streaming_source_runner*) if mkdir "{mark}" 2>/dev/null; then exec sleep 12; fi;; esac
exec "{python}" "$@"
"""


def source_processes() -> set[int]:
    """Python processes that serve a stream's source, children of this test's JVM."""
    found = set()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                is_one = RUNNER in (path / "cmdline").read_bytes() and _descends(int(path.name))
            except OSError:
                continue
            if is_one:
                found.add(int(path.name))
    return found


def _descends(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


class Running:
    """A query under `run_forever` in a thread: its starts, its messages, and how it ended."""

    def __init__(self, start: Any) -> None:
        self.said: list[str] = []
        self.error: BaseException | None = None
        self.starts = threading.Semaphore(0)
        self.stop = threading.Event()
        self._start = start
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        def start() -> Any:
            query = self._start()
            self.starts.release()
            return query

        try:
            run_forever(start, say=self.said.append, stop=self.stop)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        """Stop it and wait."""
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def running() -> Iterator[Any]:
    """Makes a `Running` that is stopped at the end of the test."""
    made: list[Running] = []

    def make(start: Any) -> Running:
        made.append(Running(start))
        return made[-1]

    yield make
    for one in made:
        one.end()


def into(frame: Any, server: str, topic: str, checkpoint: Path) -> Any:
    """The stream into the exactly-once sink."""
    writer = frame.select("body").writeStream.format("rocketmq").options(nameServer=server, mqttTopic=topic)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def until(load: Frames, topic: str, count: int, one: Running) -> list[int]:
    """The rows of the sink, once there are `count` of them."""
    for _ in range(240):
        found = numbers(load(mqttFilter=topic))
        if len(found) >= count:
            return found
        assert one.thread.is_alive(), str(one.error)
        one.stop.wait(0.5)
    return numbers(load(mqttFilter=topic))


def test_a_killed_source_goes_on_from_the_checkpoint(
    load: Frames, publish: Publish, server: str, tmp_path: Path, running: Any
) -> None:
    publish("restart/in", range(20))
    before = source_processes()

    def start() -> Any:
        frame = load(stream=True, mqttFilter="restart/in", startingOffsets="earliest")
        return into(frame, server, "restart/out", tmp_path / "checkpoint")

    one = running(start)
    assert until(load, "restart/out", 20, one) == list(range(20))
    killed = source_processes() - before
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    publish("restart/in", range(20, 30))
    assert until(load, "restart/out", 30, one) == list(range(30))
    assert len(one.said) == 1
    assert "restarts from its checkpoint in 1 s (restart 1 of at most 10" in one.said[0]


def test_a_source_that_does_not_connect_in_time_is_started_again(
    spark: Any, publish: Publish, load: Frames, server: str, tmp_path: Path, running: Any, monkeypatch: Any
) -> None:
    from spark_connector.source import RocketMQDataSource

    class Slow(RocketMQDataSource):
        @classmethod
        def name(cls) -> str:
            return "rocketmq_slow"

    Slow.__module__ = "__main__"  # so that it is pickled by value: workers do not import tests
    python = tmp_path / "python"
    python.write_text(SLOW_PYTHON.format(mark=tmp_path / "was-slow", python=sys.executable))
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    spark.dataSource.register(Slow)
    publish("slow/in", range(10))

    def start() -> Any:
        reader = spark.readStream.format("rocketmq_slow").option("nameServer", server)
        frame = reader.option("mqttFilter", "slow/in").option("startingOffsets", "earliest").load()
        return into(frame, server, "slow/out", tmp_path / "checkpoint")

    one = running(start)
    assert until(load, "slow/out", 10, one) == list(range(10))
    assert (tmp_path / "was-slow").exists()
    assert len(one.said) == 1
    assert one.said[0].startswith(
        "The query failed: Python worker failed to connect back. It restarts from its checkpoint"
    )


def test_a_wrong_option_and_a_wrong_column_are_raised_at_once(
    load: Frames, publish: Publish, server: str, tmp_path: Path
) -> None:
    publish("wrong/in", range(1))
    said: list[str] = []

    def misspelled() -> Any:
        return into(load(stream=True, mqttFiltr="wrong/in"), server, "wrong/out", tmp_path / "one")

    with pytest.raises(AnalysisException, match="mqttFilter"):
        run_forever(misspelled, say=said.append)

    def no_column() -> Any:
        return into(load(stream=True, mqttFilter="wrong/in").select("bodi"), server, "wrong/out", tmp_path / "two")

    with pytest.raises(AnalysisException, match="bodi"):
        run_forever(no_column, say=said.append)

    def no_topic() -> Any:
        frame = load(stream=True, topic="restarts-no-such-topic", startingOffsets="earliest")
        return into(frame, server, "wrong/out", tmp_path / "three")

    with pytest.raises(StreamingQueryException, match="no broker has"):
        run_forever(no_topic, say=said.append)
    assert said == []


def test_a_query_that_is_stopped_is_not_started_again(
    load: Frames, publish: Publish, server: str, tmp_path: Path
) -> None:
    """If the query is stopped elsewhere, the call returns without an error."""
    publish("ended/in", range(3))
    queries: list[Any] = []

    def start() -> Any:
        frame = load(stream=True, mqttFilter="ended/in", startingOffsets="earliest")
        queries.append(into(frame, server, "ended/out", tmp_path / "checkpoint"))
        threading.Timer(1, queries[-1].stop).start()
        return queries[-1]

    run_forever(start)
    assert len(queries) == 1
