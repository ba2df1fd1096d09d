"""Short runs against real processes: recorded faults, nothing acknowledged is lost, order holds, replicas are equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.run import Options, Run

FAULTS = 30

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1_500)]


def events(folder: Path) -> list[str]:
    """The recorded events."""
    return [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()]


def test_a_group_of_three_survives_thirty_faults(tmp_path: Path) -> None:
    """Kills, pauses, restarts, lost and damaged disks and a broken network, on every part and on several at once."""
    options = Options(
        seed=20, folder=tmp_path / "run", seconds=1_200, faults_max=FAULTS, scale=0.4, controllers=3, brokers=3,
        learners=1, silence_ms=8_000, command="see the test",
    )  # fmt: skip
    report = Run(options).execute()
    assert report.passed, report.text()
    assert events(options.folder).count("fault") >= FAULTS
    assert {fault["kind"] for fault in report.faults} >= {"kill", "pause", "restart_loop", "kill_all", "lost_tails"}


def test_a_single_broker_behind_fault_proxies(tmp_path: Path) -> None:
    """Possible for every user: nothing of it needs root."""
    options = Options(
        seed=21, folder=tmp_path / "run", seconds=1_200, faults_max=10, scale=0.3, network="proxies",
        command="see the test",
    )  # fmt: skip
    report = Run(options).execute()
    assert report.passed, report.text()
    assert events(options.folder).count("fault") >= 10
