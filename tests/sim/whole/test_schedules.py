"""Whole processes keep every rule whatever fails, a seed determines the history, and planted bugs are caught."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.whole.plants import PLANTS

ROOT = Path(__file__).parents[3]


def simulate(*options: str, hash_seed: int = 0) -> subprocess.CompletedProcess[str]:
    """Run schedules in a process of their own."""
    command = [sys.executable, "-m", "tests.sim.whole", *options]
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("seed", [100, 103])
@pytest.mark.parametrize("mode", [(), ("--elects",)], ids=["controllers", "elects"])
def test_no_schedule_breaks_a_rule(seed, mode):
    """Nothing acknowledged is lost, nothing confirmed changes, and all logs are equal at the end."""
    done = simulate("--schedules", "3", "--seed", str(seed), *mode)
    assert "0 violations" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
    counts = dict(each.split(" ") for each in done.stdout.splitlines()[-3].split(", "))
    assert int(counts["acknowledged"]) > 100, "too little was acknowledged to prove anything"
    assert int(counts["epochs"]) >= 3


def test_a_seed_replays_its_history():
    """The same seed gives the same bytes, events and times, whatever the hashes of the process; another does not."""
    first, again, other = (
        simulate("--schedules", "1", "--seed", seed, hash_seed=hash_seed).stdout.splitlines()[-1]
        for seed, hash_seed in (("7", 1), ("7", 2), ("8", 1))
    )
    assert first.startswith("history ")
    assert first == again
    assert first != other


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_a_planted_bug_is_caught(plant):
    """Within a few schedules; the command to replay it is printed."""
    done = simulate("--plant", plant, "--schedules", "25", "--seed", "500")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"--plant {plant}" in done.stdout
