"""The examples: their queries in the shared session, and (slow) each by the command its document names."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from remoting.client.blocking import BlockingConnection
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from tests.interop.spark_scenario import Frames, forget_last_commit

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(300)]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MORNING_MS = 1_767_225_600_000
Send = Callable[[str, list[tuple[float, int]]], None]


def example(name: str) -> Any:
    """The example, loaded as a module."""
    specification = importlib.util.spec_from_file_location(name.replace("/", "_"), EXAMPLES / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[module.__name__] = module
    specification.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # as a script's definitions are sent to the workers
    return module


@pytest.fixture
def send(server: str) -> Send:
    """`send(device, [(celsius, seconds since the morning)])`."""

    def store(device: str, readings: list[tuple[float, int]]) -> None:
        entries = []
        for celsius, second in readings:
            body = json.dumps({"celsius": celsius, "time_ms": MORNING_MS + second * 1000}).encode()
            entries.append(image.encode_mqtt_image(f"plant/{device}/temp".encode(), body, 1, 0, b"test"))
        with BlockingConnection.dial(server) as connection:
            reply = connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(entries)))
        assert reply.code == 0, reply.remark

    return store


def answers(load: Frames, device: str) -> list[tuple[int, float]]:
    """Number of readings and highest value of each session reported to a device."""
    rows = load(mqttFilter=f"plant/{device}/sessions").orderBy("queueOffset").collect()
    found = [json.loads(bytes(row.body)) for row in rows]
    return [(one["readings"], one["highest"]) for one in found]


def test_sessions_end_by_the_next_reading_and_by_a_timer(
    load: Frames, send: Send, spark: Any, server: str, tmp_path: Path
) -> None:
    """Two sessions of one device; one of another, ended only by the others' event time; the last stays open."""
    module = example("device_sessions")
    send("s1", [(10.0, 0), (12.0, 20), (11.0, 40), (30.0, 200)])
    send("s2", [(5.0, 10)])
    query = module.start(spark, server, str(tmp_path / "checkpoint"), once=True)
    assert query.awaitTermination(250), query.lastProgress
    send("s3", [(1.0, 400)])
    query = module.start(spark, server, str(tmp_path / "checkpoint"), once=True)
    assert query.awaitTermination(250), query.lastProgress
    assert answers(load, "s1") == [(3, 12.0), (1, 30.0)]
    assert answers(load, "s2") == [(1, 5.0)]
    assert answers(load, "s3") == []


def test_a_delta_table_has_a_repeated_batch_once(send: Send, spark: Any, server: str, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    module = example("delta_sink")
    table, checkpoint = str(tmp_path / "table"), tmp_path / "checkpoint"

    def run() -> list[float]:
        query = module.start(spark, server, table, str(checkpoint), once=True)
        assert query.awaitTermination(250), query.lastProgress
        rows = deltalake.DeltaTable(table).to_pyarrow_table().to_pylist()
        return sorted(row["celsius"] for row in rows if row["device"] == "d1")

    send("d1", [(1.0, 0), (2.0, 1)])
    assert run() == [1.0, 2.0]
    forget_last_commit(checkpoint)
    send("d1", [(3.0, 2)])
    assert run() == [1.0, 2.0, 3.0]
    assert deltalake.DeltaTable(table).transaction_version(module.application_of(str(checkpoint))) == 1


def test_a_new_checkpoint_on_an_existing_delta_table_loses_nothing(
    send: Send, spark: Any, server: str, tmp_path: Path
) -> None:
    """Its batches begin at 0 again, a number that the table already has from the other checkpoint."""
    deltalake = pytest.importorskip("deltalake")
    module = example("delta_sink")
    table = str(tmp_path / "table")

    def run(checkpoint: str) -> list[float]:
        query = module.start(spark, server, table, str(tmp_path / checkpoint), once=True)
        assert query.awaitTermination(250), query.lastProgress
        rows = deltalake.DeltaTable(table).to_pyarrow_table().to_pylist()
        return sorted(row["celsius"] for row in rows if row["device"] == "d2")

    send("d2", [(1.0, 0)])
    assert run("one") == [1.0]
    send("d2", [(2.0, 1)])
    assert run("two") == [1.0, 1.0, 2.0]
    assert run("two") == [1.0, 1.0, 2.0]


def test_help_needs_no_deltalake(tmp_path: Path) -> None:
    (tmp_path / "deltalake.py").write_text("raise ImportError('not here')")
    command = [sys.executable, str(EXAMPLES / "delta_sink.py")]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{EXAMPLES.parent}"}
    shown = subprocess.run([*command, "--help"], env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "--checkpoint" in shown.stdout
    run = subprocess.run([*command, "--once"], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    assert "-m pip install deltalake" in run.stderr


@pytest.mark.parametrize(("fails", "runs"), [("failed to connect back", 3), ("no such column", 1)])
def test_a_pipeline_whose_start_was_too_slow_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], fails: str, runs: int
) -> None:
    """A stand-in for `spark-pipelines` that fails twice."""
    module = example("pipeline/run")
    script = tmp_path / "bin" / "spark-pipelines"
    script.parent.mkdir()
    failure = f'{{ echo "Python worker {fails}" >&2; exit 1; }}'
    script.write_text(f"#!/bin/sh\necho x >> runs\n[ $(wc -l < runs) -gt 2 ] || {failure}\n")
    script.chmod(0o755)
    monkeypatch.setattr(module, "SPARK_HOME", tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", "--folder", str(tmp_path / "out")])
    assert module.main() == (0 if runs > 1 else 1)
    assert (tmp_path / "out" / "runs").read_text().count("x") == runs
    assert capfd.readouterr().out.count("started too slowly") == runs - 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["device_sessions.py", "--once", "--checkpoint", "checkpoint"], "sessions written"),
        (["delta_sink.py", "--once", "--table", "table", "--checkpoint", "checkpoint"], "rows in the table:"),
        (["pipeline/run.py", "--folder", "pipeline"], "Run is COMPLETED"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_each_by_its_command(send: Send, server: str, tmp_path: Path, command: list[str], says: str) -> None:
    send("c1", [(7.0, 0), (9.0, 10), (8.0, 500)])
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / command[0]), "--server", server, *command[1:]],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    assert says in said
