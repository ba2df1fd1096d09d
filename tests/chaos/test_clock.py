"""A shifted clock shifts the time of day of a running process, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.clock import build, set_shift, variables

SAY = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""


def test_the_time_of_day_jumps_and_comes_back(tmp_path: Path) -> None:
    """While the process runs; its monotonic clock goes on."""
    library = build(tmp_path)
    if library is None:
        pytest.skip("clocks can only be shifted with a C compiler")
    file = tmp_path / "shift"
    environment = {**os.environ, **variables(library, file)}
    process = subprocess.Popen(
        [sys.executable, "-c", SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    off, steady = [], []
    for seconds in (0.0, 3_600.0, -3_600.0, 0.0):
        set_shift(file, seconds)
        process.stdin.write("\n")
        process.stdin.flush()
        day, monotonic = map(float, process.stdout.readline().split())
        off.append(day - time.time() - seconds)
        steady.append(monotonic - time.monotonic())
    assert max(map(abs, off)) < 600
    assert max(map(abs, steady)) < 600
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()
