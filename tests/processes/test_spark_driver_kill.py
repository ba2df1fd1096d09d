"""The Spark driver is killed in the middle of the demo's query and started again from its checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lightmq.demo.accounting import decide_again, read_ledger, stored_counts
from lightmq.demo.driver import SparkDriver
from lightmq.demo.feed import Device
from lightmq.demo.stack import Stack
from runtime.clock import SystemClock

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(600)]
READINGS = 2000
"""Published before each start of the driver."""


def query(out: Path, nameserver: int) -> list[str]:
    """Arguments of one driver; the same at each start."""
    return [
        "--nameserver",
        f"127.0.0.1:{nameserver}",
        "--host",
        "unit",
        "--out",
        str(out),
        "--trigger",
        "100 milliseconds",
    ]


def publish(device: Device, first: int, count: int) -> None:
    """Publish readings with a jump now and then; return when all are acknowledged."""
    for index in range(first, first + count):
        device.publish(
            f"s{index % 4}", 10.0 + index % 3 + (90 if index % 800 > 795 else 0), 1_700_000_000_000 + index * 10
        )
    assert device.wait_acknowledged(60)


def kill_driver(driver: SparkDriver) -> None:
    """kill -9 of the driver, its JVM and its workers."""
    assert driver._child is not None
    os.killpg(driver._child.pid, signal.SIGKILL)
    with driver._said:
        assert driver._said.wait_for(lambda: driver._heard.get("ended"), 30)


@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.slow, id="4-slow")])
def test_rows_are_there_exactly_once_after_kill_9(tmp_path: Path, kills: int) -> None:
    """None missing and none twice, neither in the ledger nor among the commands."""
    stack = Stack(tmp_path / "data")
    ports = stack.start(processes=False)
    device = Device("unit", SystemClock())
    drivers = [SparkDriver(tmp_path / f"spark-{number}.log") for number in range(kills + 1)]
    try:
        device.connect("127.0.0.1", ports.mqtt)
        publish(device, 0, READINGS)
        for number, driver in enumerate(drivers):
            driver.start(query(tmp_path, ports.nameserver))
            with driver._said:
                assert driver._said.wait_for(lambda d=driver: len(d.progress) == 3 or d._heard.get("ended"), 200)
            driver.check()
            if number < kills:
                publish(device, (number + 1) * READINGS, READINGS)
                kill_driver(driver)
        stored = (-1, -1)
        while stored != (stored := stored_counts(ports.nameserver, "unit")):
            drivers[-1].order("drain", "drained", 120)
            assert device.wait_acknowledged(30)
        rows = read_ledger(tmp_path / "ledger")
        assert len(rows) == len({row.id for row in rows}) == device.acknowledged
        decided = decide_again(rows)
        assert decided
        assert stored[1] == len(decided)
        assert device.commands == dict.fromkeys(decided, 1)
    finally:
        drivers[-1].stop()
        device.close()
        stack.stop()


def test_a_query_reports_a_wrong_address(tmp_path: Path) -> None:
    """A driver without a server ends, after one restart, with an error that names the address."""
    command = [sys.executable, "-m", "lightmq.demo.query", *query(tmp_path, 1), "--restarts", "1"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, input="drain\n", timeout=200)
    events = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith("{")]
    said = finished.stderr + json.dumps(events)
    assert finished.returncode != 0
    assert "127.0.0.1:1" in said
