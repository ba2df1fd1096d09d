"""A sink whose tasks stage their rows and then fail or stall, and a driver that runs it on a cluster.

`attempts` is the source `rocketmq` under another name. Additional options make the first attempt of a task fail
(`failsOnce`) or wait for a second one (`slowFirst`); each attempt leaves a file when it has staged its rows. Executors
look up both by name and have this folder on their path.

    python -m tests.interop.spark_attempts URL SERVER FOLDER    prints one JSON object with what was found
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from lightmq.spark import session
from spark_connector.options.read_write import parse_write
from spark_connector.source import RocketMQDataSource
from spark_connector.writing.writer import RocketMQBatchWriter, RocketMQStreamWriter
from tests.interop.spark_cluster import EXECUTORS

DEADLINE_S = 120.0
ROWS = 4_000
OWN = ("failsonce", "slowfirst", "folder")
CONF = {
    **EXECUTORS,
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.ui.enabled": "false",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.efficiency.enabled": "false",
}


class Misbehaviour:
    """What attempts do after staging their rows."""

    def __init__(self, options: dict[str, str]) -> None:
        self._fails = options.get("failsonce") == "true"
        self._slow = options.get("slowfirst") == "true"
        self._folder = Path(options["folder"])

    def after_staging(self) -> None:
        """Leave the file of this attempt; the first attempt of task 0 fails, or waits for the second."""
        context = TaskContext.get()
        assert context is not None
        stage, partition, attempt = context.stageId(), context.partitionId(), context.attemptNumber()
        (self._folder / f"staged-{stage}-{partition}-{attempt}").touch()
        if partition != 0 or attempt != 0:
            return
        if self._fails:
            raise RuntimeError("this attempt fails after its rows were staged")
        deadline = time.monotonic() + DEADLINE_S
        while self._slow and not (self._folder / f"staged-{stage}-{partition}-1").exists():
            if time.monotonic() > deadline:
                raise TimeoutError("there was no second attempt")
            time.sleep(0.05)


class _BatchWriter(RocketMQBatchWriter):
    misbehaviour: Misbehaviour

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage, then misbehave."""
        message = super().write(iterator)
        self.misbehaviour.after_staging()
        return message


class _StreamWriter(RocketMQStreamWriter):
    misbehaviour: Misbehaviour

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stage, then misbehave."""
        message = super().write(iterator)
        self.misbehaviour.after_staging()
        return message


class AttemptsSource(RocketMQDataSource):
    """`rocketmq` with tasks that misbehave."""

    @classmethod
    def name(cls) -> str:
        """Return the argument of `.format(...)`."""
        return "attempts"

    def writer(self, schema: Any, overwrite: bool) -> _BatchWriter:
        """For `df.write`."""
        made = _BatchWriter(schema, parse_write(self._rest()), overwrite=overwrite)
        made.misbehaviour = Misbehaviour(dict(self.options))
        return made

    def streamWriter(self, schema: Any, overwrite: bool) -> _StreamWriter:  # noqa: N802 - Spark's name
        """For `df.writeStream`."""
        made = _StreamWriter(schema, parse_write(self._rest()), overwrite=overwrite)
        made.misbehaviour = Misbehaviour(dict(self.options))
        return made

    def _rest(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name.lower() not in OWN}


class Run:
    """The scenarios, each into a topic of its own."""

    def __init__(self, spark: Any, server: str, folder: Path) -> None:
        self._spark = spark
        self._server = server
        self._folder = folder

    def batch(self, topic: str, **options: str) -> None:
        """A batch write of two tasks."""
        rows = self._spark.range(0, ROWS, 1, 2).selectExpr("cast(id AS string) AS body")
        self._aimed(rows.write.format("attempts"), topic, options).mode("append").save()

    def stream(self, source: str, topic: str, **options: str) -> int:
        """A stream from a topic in batches of two tasks each; the number of batches."""
        reader = self._spark.readStream.format("rocketmq").option("nameServer", self._server)
        reader = reader.options(mqttFilter=source, startingOffsets="earliest", minPartitions="2")
        rows = reader.option("maxOffsetsPerTrigger", str(ROWS // 2)).load().select("body")
        writer = self._aimed(rows.writeStream.format("attempts"), topic, options)
        writer = writer.option("checkpointLocation", str(self._folder / f"checkpoint-{topic.replace('/', '-')}"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(int(3 * DEADLINE_S))
        return len([one for one in query.recentProgress if one.numInputRows])

    def found(self, topic: str) -> dict[str, Any]:
        """The rows that a consumer of the topic sees, and the attempts that staged rows."""
        rows = self._spark.read.format("rocketmq").options(nameServer=self._server, mqttFilter=topic).load()
        counts = rows.selectExpr("count(body) AS rows", "count(DISTINCT body) AS distinct").first().asDict()
        marks = self._marks(topic)
        staged = sorted(path.name.split("-")[1:] for path in marks.iterdir())
        return counts | {"staged": staged}

    def _aimed(self, writer: Any, topic: str, options: dict[str, str]) -> Any:
        marks = self._marks(topic)
        marks.mkdir()
        return writer.options(nameServer=self._server, mqttTopic=topic, folder=str(marks), **options)

    def _marks(self, topic: str) -> Path:
        return self._folder / f"marks-{topic.replace('/', '-')}"


def main(url: str, server: str, folder: str) -> None:
    """Run all scenarios in one application."""
    spark = session("attempts", master=url, conf=CONF)
    spark.dataSource.register(AttemptsSource)
    run = Run(spark, server, Path(folder))
    scenarios: dict[str, Callable[[str], object]] = {
        "batch-fails": lambda topic: run.batch(topic, failsOnce="true"),
        "batch-slow": lambda topic: run.batch(topic, slowFirst="true"),
        "stream-fails": lambda topic: run.stream("found/batch-fails", topic, failsOnce="true"),
        "stream-slow": lambda topic: run.stream("found/batch-fails", topic, slowFirst="true"),
    }
    said = {}
    for name, scenario in scenarios.items():
        batches = scenario(f"found/{name}")
        said[name] = run.found(f"found/{name}") | {"batches": batches}
    print(json.dumps(said), flush=True)
    spark.stop()


if __name__ == "__main__":
    from tests.interop import spark_attempts  # under its own name, by which executors find the classes

    spark_attempts.main(*sys.argv[1:])
