"""What one run is about: `Stage` (where and how, also for Spark's process), `Example` (the story), `Run` (its parts).

Invariant: a `Stage` is a value that travels to Spark's process as JSON, so both sides know the same run. Thread rule:
the hooks of an `Example` are called from the main thread of the process they belong to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from kit.claims import Claim

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from lightmq.demo.driver import SparkDriver
    from lightmq.demo.picture import Picture
    from lightmq.demo.stack import Ports


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One run: the server, the folder, and the seed and pace that make it repeatable."""

    server: str
    """host:port of the log, for `.option("nameServer", ...)`."""
    mqtt_host: str
    mqtt_port: int
    out: str
    """Folder of rows, checkpoints, logs and the picture."""
    from_ms: int
    """The log is read from here; 0: from its beginning, which a server of our own has."""
    seconds: float
    """How long the story is told, in seconds of this clock."""
    speed: float
    """Seconds of the story in one of them."""
    seed: int
    options: dict[str, float]
    """Disturbances chosen on the command line, by name."""
    words: dict[str, str]
    """What was chosen for the example's own options, by name."""

    @property
    def story_s(self) -> float:
        """How much of the story is told, in its own seconds."""
        return self.seconds * self.speed

    @property
    def source(self) -> dict[str, str]:
        """Options of `spark.readStream.format("rocketmq")`: this run's messages, from the first one."""
        start = {"startingOffsets": "earliest"}
        if self.from_ms:
            start = {"startingTimestamp": str(self.from_ms), "startingOffsetsByTimestampStrategy": "latest"}
        return {"nameServer": self.server} | start

    def folder(self, name: str) -> Path:
        """Where the rows of one query go, or any other part of this run."""
        return Path(self.out, name)

    def to_parquet(self, frame: DataFrame, name: str, trigger: str = "1 second") -> StreamingQuery:
        """Start the query `name`: rows to Parquet, each exactly once, progress in a checkpoint of its own."""
        writer = self.writer(frame, name, trigger).format("parquet")
        return writer.option("path", str(self.folder(name))).start()

    def to_mqtt(self, frame: DataFrame, name: str, trigger: str = "500 milliseconds") -> StreamingQuery:
        """Start the query `name`: rows with `mqttTopic` and `body` back to devices, each exactly once."""
        return self.writer(frame, name, trigger).format("rocketmq").option("nameServer", self.server).start()

    def writer(self, frame: DataFrame, name: str, trigger: str) -> DataStreamWriter:
        """Return the `writeStream` of a query with name, trigger and checkpoint; give it a format and start it."""
        writer = frame.writeStream.queryName(name).trigger(processingTime=trigger)
        return writer.option("checkpointLocation", str(self.folder("checkpoints") / name))

    def save(self) -> Path:
        """Write it where Spark's process looks for it."""
        path = self.folder("stage.json")
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: str) -> Self:
        """Read what `save` wrote."""
        return cls(**json.loads(Path(path).read_text()))


class Servers(Protocol):
    """The servers of a run: `lightmq up` as a `Stack`, unless the example brings others."""

    def start(self, *, processes: bool, ports: Ports | None = None) -> Ports:
        """Start them, on the same data and ports if `ports` are given; raises StackFailed when they are not ready."""

    def kill(self) -> None:
        """End all by kill -9."""

    def stop(self) -> None:
        """End all."""


class Simulation(Protocol):
    """The devices of an example: they publish over MQTT until the story is told."""

    @property
    def sent(self) -> int:
        """Messages handed to MQTT."""

    @property
    def acknowledged(self) -> int:
        """Messages accepted by the server."""

    def start(self) -> None:
        """Connect and begin; returns at once."""

    def stop(self) -> None:
        """Publish nothing more."""

    def finished(self) -> bool:
        """Whether the story is told; always False for devices that live on until they are stopped."""

    def settle(self, timeout_s: float) -> bool:
        """Wait until everything sent is acknowledged, disconnect; False when something was not."""

    def figures(self) -> Mapping[str, str]:
        """A few lines of the live view, by title."""


@dataclass(slots=True)
class Run:
    """The running parts, handed to hooks: `during` may kill them, `check` and `picture` read what they left."""

    stage: Stage
    devices: Any
    stack: Any
    """None with `--server`: that one is not ours to kill."""
    spark: SparkDriver | None
    note: Callable[[str], object]
    """Say one sentence that stays."""
    restart_spark: Callable[[], object]
    """Start Spark's process again after `spark.kill()`; its queries resume from their checkpoints."""
    restart_server: Callable[[], object]
    """Start the server again after `stack.kill()`, on the same data and ports; returns when it is ready."""
    live_s: float = 0.0
    """Seconds since the story began: with `live` since each query has made a batch."""


Queries = Mapping[str, Callable[[], "StreamingQuery"]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One story. `devices` simulates, `queries` is the pipeline, `check` and `picture` say and show what came out."""

    name: str
    headline: str
    """What happens, in one line, printed first."""
    filters: Sequence[str]
    """MQTT filters worth watching in the console."""
    devices: Callable[[Stage], Simulation]
    check: Callable[[Run], list[Claim]]
    picture: Callable[[Run, list[Claim]], Picture]
    queries: Callable[[SparkSession, Stage], Queries] | None = None
    """What starts each query, the most urgent first; each loads its own stream, so that a restart builds all of it."""
    batch: Callable[[SparkSession, Stage], object] | None = None
    """Called in Spark's process once everything is processed: the batch side of the story."""
    during: Callable[[Run], bool | None] | None = None
    """Called four times a second while the story runs; a `live` one goes on beyond its seconds while this is True."""
    seconds: float = 60.0
    speed: float = 1.0
    live: bool = False
    """The story begins to count when each query has made a batch, and devices answer until `seconds` later."""
    settings: Mapping[str, str] | None = None
    """Further settings of the Spark session."""
    disturbances: Mapping[str, float] | None = None
    """Default shares of `--late`, `--duplicates`, `--out-of-order`, `--offline`; None: no such options."""
    arguments: Mapping[str, tuple[str, str]] | None = None
    """Options of the example's own: name, default and help; `stage.words` has what was chosen."""
    servers: Callable[[Path], Servers] | None = None
    """What makes the servers of a folder, where it is not one `lightmq up`."""
