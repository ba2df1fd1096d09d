"""Broker groups that are away, and one that joins, as the connector's driver and tasks meet them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from remoting.client.admin import topic_fields
from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import checked
from spark_connector.brokers import POOL, find_groups
from spark_connector.decode.ddl import parse_columns
from spark_connector.errors import BrokerUnreachable
from spark_connector.options.read_write import parse_read, parse_write
from spark_connector.reading import bounds
from spark_connector.source import RocketMQDataSource
from spark_connector.writing import writer
from tests.processes.rig import Process, no_traceback

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
SOON = {"brokerWaitMs": "700", "fetchRetries": "1", "fetchRetryIntervalMs": "50"}
"""A query that fails soon while something is away."""
ROWS = 40


def schema_of(source: RocketMQDataSource) -> StructType:
    """Its columns as Spark hands them back."""
    found = source.schema()
    return found if isinstance(found, StructType) else parse_columns(found)


class Groups:
    """A controller, and broker groups of one broker each; the topics `both` and `one` of the first group's name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        at_once = ["--set", "controller.broker_lost_grace_ms=0"]
        self.controller = Process(folder / "c", ["controller", "--data", str(folder / "cd"), *at_once], "remoting")
        self.controller.start()
        self.server = f"127.0.0.1:{self.controller.port}"
        self.brokers: dict[str, Process] = {}

    def start(self, name: str, *topics: str) -> None:
        """Start the broker of a group, for the first time with these topics."""
        if name not in self.brokers:
            chosen = ["--controllers", self.server, "--set", f"broker.broker_name={name}"]
            data = ["--data", str(self.folder / f"{name}-data")]
            self.brokers[name] = Process(self.folder / name, ["broker", *data, *chosen], "remoting")
        self.brokers[name].start()
        for topic in topics:
            command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=topic_fields(topic, 2))
            with BlockingConnection.dial(f"127.0.0.1:{self.brokers[name].port}", 30_000) as connection:
                checked(connection.request(command))
        while name in self.away():
            pass

    def kill(self, name: str) -> None:
        """Kill the broker of a group, and wait until the name server knows."""
        self.brokers[name].kill()
        while name not in self.away():
            pass

    def away(self) -> tuple[str, ...]:
        return find_groups(parse_read({"topic": "t", "nameserver": self.server})).absent

    def options(self, **given: object) -> dict[str, str]:
        return {"nameServer": self.server} | {name: str(value) for name, value in given.items()}

    def read(self, **given: object) -> list[int]:
        """The numbers that a batch read gives."""
        source = RocketMQDataSource(self.options(**given))
        reader = source.reader(schema_of(source))
        parts = [batch for part in reader.partitions() for batch in reader.read(part)]
        return sorted(int(body) for batch in parts for body in batch.column("body").to_pylist())

    def append(self, first: int, count: int, **given: object) -> writer.StagedRows:
        """Rows with `delivery` = at-least-once."""
        return self.stage("", 0, first, count, delivery="at-least-once", **given)

    def stage(self, sink: str, batch: int, first: int, count: int, *, key: bool = False, **given: object) -> Any:
        """What a task leaves of rows with these numbers."""
        numbers = range(first, first + count)
        columns = {"body": [b"%d" % number for number in numbers]}
        columns |= {"key": [str(number) for number in numbers]} if key else {}
        rows = pa.RecordBatch.from_pydict(columns)
        options = parse_write({name.lower(): value for name, value in self.options(**given).items()})
        named = [(field.name, field.dataType.simpleString()) for field in from_arrow_schema(rows.schema).fields]
        chosen = writer.sink_columns(named, options)
        return writer.write_task(iter([rows]), chosen, options, sink, batch, is_stream=True)

    def commit(self, staged: writer.StagedRows, **given: object) -> list[str]:
        options = parse_write({name.lower(): value for name, value in self.options(**given).items()})
        return writer.commit_job([staged], options)

    def stop(self) -> None:
        POOL.close()
        for process in (*self.brokers.values(), self.controller):
            process.kill_if_running()


class Stream:
    """A running query that reads a topic from its beginning."""

    def __init__(self, groups: Groups, **given: object) -> None:
        source = RocketMQDataSource(groups.options(startingOffsets="earliest", longPollMs=50, **given))
        self._reader = source.streamReader(schema_of(source))
        self._at = json.loads(json.dumps(self._reader.initialOffset()))
        self.numbers: list[int] = []

    def read(self) -> list[int]:
        """Plan and read one batch; everything read so far."""
        end = json.loads(json.dumps(self._reader.latestOffset(self._at, self._reader.getDefaultReadLimit())))
        for part in self._reader.partitions(self._at, end) if end != self._at else ():
            for batch in self._reader.read(part):
                self.numbers += [int(body) for body in batch.column("body").to_pylist()]
        self._at = end
        return sorted(self.numbers)


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    made = Groups(tmp_path)
    with closing(_Stopping(made)):
        made.start("group-a", "both", "one")
        made.start("group-b", "both")
        yield made
        no_traceback(*made.brokers.values(), made.controller)


class _Stopping:
    def __init__(self, groups: Groups) -> None:
        self.close = groups.stop


def test_what_is_away_is_neither_missing_nor_elsewhere(groups: Groups) -> None:
    """Reads fail by the group's name, rows and replays go nowhere else, and all goes on when the group is back."""
    groups.append(0, ROWS, topic="both", key=True)
    groups.append(0, ROWS, topic="one")
    groups.commit(groups.stage("sink", 1, ROWS, ROWS, topic="both", key=True), topic="both")
    everything = list(range(2 * ROWS))
    assert groups.read(topic="both") == everything
    groups.kill("group-a")
    for topic in ("both", "one"):
        with pytest.raises(BrokerUnreachable, match=r"broker group 'group-a' has no master"):
            groups.read(topic=topic, **SOON)
    with pytest.raises(BrokerUnreachable, match=r"broker group 'group-a' has no master"):
        Stream(groups, topic="both", **SOON)
    rest = groups.read(topic="both", failOnDataLoss="false", **SOON)
    assert 0 < len(rest) < len(everything)
    for key in (False, True):
        with pytest.raises(BrokerUnreachable, match=r"broker group 'group-a' has no master .*its topic 'one'"):
            groups.append(ROWS, ROWS, topic="one", key=key, **SOON)
    with pytest.raises(BrokerUnreachable, match=r"broker group 'group-a' has no master .*its topic 'both'"):
        groups.append(2 * ROWS, ROWS, topic="both", key=True, **SOON)
    with pytest.raises(BrokerUnreachable, match=r"group-a.* has no master .*last batch of sink 'sink'"):
        groups.stage("sink", 1, ROWS, ROWS, topic="both", key=True, **SOON)
    groups.start("group-a")
    assert groups.stage("sink", 1, ROWS, ROWS, topic="both", key=True).is_replay
    assert groups.read(topic="one") == list(range(ROWS))
    assert set(everything) <= set(groups.read(topic="both"))


def test_a_group_that_joins_is_read_by_a_running_query(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is new or was away when the query began, where that was allowed."""
    monkeypatch.setattr(bounds, "LOOK_EVERY_S", 0.2)
    groups.append(0, ROWS, topic="both", key=True)
    groups.kill("group-b")
    stream = Stream(groups, topic="both", failOnDataLoss="false", **SOON)
    assert 0 < len(stream.read()) < ROWS
    groups.start("group-b")
    groups.start("group-c", "both")
    groups.append(ROWS, ROWS, topic="both", key=True)
    while len(stream.read()) < 2 * ROWS:
        pass
    assert stream.read() == list(range(2 * ROWS))
