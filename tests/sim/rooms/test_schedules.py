"""What stands on the log survives openings with an unconfirmed tail, a seed determines all, planted bugs are caught."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.rooms.plants import PLANTS
from tests.sim.rooms.runs import run_apart

ROOT = Path(__file__).parents[3]
SCHEDULES, PLANTED_MAX = 40, 120


def test_no_schedule_breaks_a_rule():
    """Nothing acknowledged is lost for its group, nothing comes twice, early, or although it was called off."""
    results = run_apart(range(SCHEDULES))
    assert [f"seed {each.seed}: {each.detail}" for each in results if each.rule] == []
    assert sum(each.messages for each in results) > 15 * SCHEDULES, "too little to prove anything"
    assert sum(each.deliveries for each in results) > 10 * SCHEDULES
    assert sum(each.epochs for each in results) > 2 * SCHEDULES


def history(seed: int, hash_seed: int) -> str:
    """What a schedule did, in a process of its own."""
    command = [sys.executable, "-m", "tests.sim.rooms", "--schedules", "1", "--seed", str(seed), "--trace"]
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_a_seed_replays_its_history():
    """Event by event, whatever the hashes of the process."""
    first, again, other = history(3, 1), history(3, 2), history(4, 1)
    assert len(first) > 1_000
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_planted_bug_is_caught(name):
    """Within some schedules that have clients of the room."""
    results = run_apart(range(PLANTED_MAX), PLANTS[name])
    assert results[-1].rule, f"{name} was not seen in {len(results)} schedules"
    print(f"{name}: seed {results[-1].seed}: {results[-1].detail}")
