"""Power cuts in the quick suite: some hundred without a planted bug, and each plant until it is detected.

`python -m tests.fuzz.power_cuts` runs any number.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.power_plants import JOURNAL, REPLICA, STORE

ROOT = Path(__file__).resolve().parents[2]
CYCLES = 60
PLANT_CYCLES = 300
QUICK = (
    "position-after-flush", "segment-name", "durable-mark", "segment-flush", "parent-directories", "journal-flush",
    "cut-names", "new-epoch", "written-acknowledged",
)  # fmt: skip
"""Plants of the quick suite; the others take longer until they are seen."""

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="the recorder is compiled"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory: the model, not this machine's disk, determines the effect of a flush."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="power-cuts-test-", dir=memory)) if os.access(memory, os.W_OK) else tmp_path
    yield made
    shutil.rmtree(made)


def cut(place: Path, *arguments: str, pure: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} | ({"LIGHTMQ_PURE": "1"} if pure else {})
    command = [sys.executable, "-m", "tests.fuzz.power_cuts", "--directory", str(place), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "pure"])
def test_nothing_acknowledged_is_lost(place: Path, pure: bool) -> None:
    """A fixed seed; the order of threads still differs."""
    done = cut(place, "--cycles", str(CYCLES), "--seed", "3", pure=pure)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    assert f"{CYCLES} cycles" in done.stdout


@pytest.mark.parametrize(
    "plant", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in STORE | REPLICA | JOURNAL]
)
def test_a_planted_bug_is_detected(place: Path, plant: str) -> None:
    """The command fails by the judge's verdict, not by an error of its own."""
    done = cut(place, "--cycles", str(PLANT_CYCLES), "--seed", "5", "--plant", plant)
    assert done.returncode != 0, done.stdout
    assert "FAILED in cycle" in done.stdout
    assert "AssertionError" in done.stderr
