"""A short run against real processes: at least thirty recorded faults, nothing acknowledged is lost, order holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.run import Options, Run

FAULTS = 30


@pytest.mark.processes
@pytest.mark.timeout(1_500)
def test_thirty_faults(tmp_path: Path) -> None:
    """Kills, pauses, restarts and a broken network, on every part and on several at once."""
    options = Options(
        seed=20, folder=tmp_path / "run", seconds=1_200, faults_max=FAULTS, scale=0.4, command="see test_short_chaos"
    )
    report = Run(options).execute()
    assert report.passed, report.text()
    recorded = [json.loads(line) for line in (options.folder / "events.jsonl").read_text().splitlines()]
    assert sum(entry["event"] == "fault" for entry in recorded) >= FAULTS
    assert {fault["kind"] for fault in report.faults} >= {"kill", "pause", "restart_loop", "kill_all", "cut"}
