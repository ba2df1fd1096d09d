"""The main job with real processes: the accounting holds for a recorded series and for this machine's sensors."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(240)]


def series(path: Path, readings: int) -> Path:
    """A wave with a few jumps, one reading every five minutes."""
    lines = ["timestamp,value"]
    for index in range(readings):
        value = 80 + 3 * math.sin(index / 50) + (25 if index % 500 == 499 else 0)
        day, minute = divmod(index * 5, 1440)
        lines.append(f"2024-01-{1 + day % 28:02d} {minute // 60:02d}:{minute % 60:02d}:00,{value:.3f}")
    path.write_text("\n".join(lines) + "\n")
    return path


def run_demo(*arguments: str) -> tuple[int, str]:
    """Run the demo to its end; return its status and what it printed."""
    finished = subprocess.run(
        [sys.executable, "-m", "lightmq.demo", "--plain", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=220,
    )
    return finished.returncode, finished.stdout + finished.stderr


def test_a_recorded_series_through_separate_processes(tmp_path: Path) -> None:
    """Controller, broker, proxy and Spark as processes: every reading once, every command once, both charts."""
    out = tmp_path / "out"
    status, text = run_demo("--csv", str(series(tmp_path / "wave.csv", 3000)), "--processes", "--out", str(out))
    assert status == 0, text
    assert text.count("holds") == 2, text
    assert "decided 0" not in text, text
    assert (out / "demo.png").stat().st_size > 10_000
    assert (out / "demo.html").stat().st_size > 10_000


def test_ctrl_c_ends_with_the_accounting(tmp_path: Path) -> None:
    """This machine's sensors until Ctrl-C; the accounting is printed and nothing is left running."""
    command = [sys.executable, "-m", "lightmq.demo", "--plain", "--seconds", "120", "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        lines = []
        for line in demo.stdout:
            lines.append(line)
            if "running" in line and "Spark batch" in line and "rows 0" not in line:
                os.killpg(demo.pid, signal.SIGINT)
                break
        begun = time.monotonic()
        lines += demo.stdout.readlines()
        text = "".join(lines)
        assert demo.wait(120) == 0, text
    assert text.count("holds") == 2, text
    assert time.monotonic() - begun < 120
