"""Two hundred lives and deaths of a store, in a process of their own; the command runs any number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CYCLES = 200


def test_nothing_confirmed_is_lost() -> None:
    """A fixed seed, so that a failure here is repeatable elsewhere; the moments of kills still differ."""
    command = [sys.executable, "-m", "tests.fuzz.crash_fuzz", "--cycles", str(CYCLES), "--seed", "20"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    assert f"{CYCLES} cycles" in done.stdout
