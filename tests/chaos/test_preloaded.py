"""A shifted clock shifts only the time of day of a running process; a slow disk delays its fsyncs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.preloaded import build, set_conditions, variables

SAY = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""


def test_the_time_of_day_jumps_and_returns(tmp_path: Path) -> None:
    """While the process runs; its monotonic clock is not affected."""
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
        set_conditions(file, clock_s=seconds)
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


FLUSH = """
import os, sys, time
with open(sys.argv[1], "wb") as stream:
    for _ in sys.stdin:
        begun = time.monotonic()
        os.fsync(stream.fileno())
        os.fdatasync(stream.fileno())
        print(time.monotonic() - begun, flush=True)
"""


def test_a_slow_disk_delays_every_flush(tmp_path: Path) -> None:
    """fsync and fdatasync both; never less than requested."""
    library = build(tmp_path)
    if library is None:
        pytest.skip("disks can only be slowed with a C compiler")
    file = tmp_path / "shift"
    command = [sys.executable, "-c", FLUSH, str(tmp_path / "data")]
    environment = {**os.environ, **variables(library, file)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdin is not None
    assert process.stdout is not None
    set_conditions(file, fsync_s=0.3)
    process.stdin.write("\n")
    process.stdin.flush()
    assert float(process.stdout.readline()) >= 0.6
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()
