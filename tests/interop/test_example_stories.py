"""The stories in examples/, by the commands that their document names: each ends with its claims and its picture.

`python -m pytest tests/interop/test_example_stories.py` runs all eight; the quick suite runs the building's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(700)]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def tell(name: str, out: Path, *arguments: str) -> str:
    """Run one story to its end; return what it printed."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--check", "--headless", "--out", str(out), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=out.parent
    ) as story:
        try:
            said, _ = story.communicate(timeout=660)
        except subprocess.TimeoutExpired:
            story.send_signal(signal.SIGTERM)
            said, _ = story.communicate()
    assert story.returncode == 0, said + logs(out)
    assert "DOES NOT HOLD" not in said, said
    assert (out / f"{name}.png").stat().st_size > 30_000
    assert not (out / "data").exists()
    return said


def logs(out: Path) -> str:
    """The end of what Spark wrote."""
    return "".join(f"\n--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(out.glob("spark*.log")))


def test_building(tmp_path: Path) -> None:
    """The stream's windows equal a batch over the same log."""
    said = tell("building", tmp_path / "out", "--seconds", "12")
    assert "windows by room equal a batch recompute: streamed" in said
    assert "console: http://127.0.0.1:" in said
    assert "/console/#token=" in said
    assert "&to=%2Flive%3Ffilter%3Dsite%252F%252B%252Ffloor" in said


@pytest.mark.slow
def test_laptop(tmp_path: Path) -> None:
    said = tell("laptop", tmp_path / "out", "--seconds", "8")
    assert "readings: sent" in said


@pytest.mark.slow
def test_fleet(tmp_path: Path) -> None:
    """Broker and driver are killed on the way, and each command is obeyed once."""
    said = tell("fleet", tmp_path / "out", "--seconds", "30")
    assert "the broker is back after" in said
    assert "Spark is back after" in said
    assert "reading to command, all parts alive: p50" in said


@pytest.mark.slow
def test_vehicles(tmp_path: Path) -> None:
    """Enter and leave events equal the ground truth of the simulator."""
    said = tell("vehicles", tmp_path / "out", "--seconds", "45")
    assert "different 0" in said


@pytest.mark.slow
def test_maintenance(tmp_path: Path) -> None:
    """Failures after the training are foreseen, by the query that judged the history."""
    said = tell("maintenance", tmp_path / "out", "--seconds", "15")
    assert "failures are foreseen (recall)" in said
    assert "history is read at 1,000 times its speed" in said


@pytest.mark.slow
def test_sparkplug(tmp_path: Path) -> None:
    """Values keep their names through new aliases; a lost message leads to a rebirth."""
    said = tell("sparkplug", tmp_path / "out", "--seconds", "20")
    assert "the as-of join gives the same names: by alias" in said
    assert "lost messages: lost" in said


@pytest.mark.slow
def test_ai(tmp_path: Path) -> None:
    """No request is lost with a worker, answers follow documents, the assistant speaks first."""
    said = tell("ai", tmp_path / "out", "--seconds", "25")
    assert "is killed (kill -9) with request" in said
    assert "requests: asked" in said


@pytest.mark.slow
def test_chaos(tmp_path: Path) -> None:
    """Acknowledged is delivered through two changes of master."""
    said = tell("chaos", tmp_path / "out", "--seconds", "30")
    assert "the master, is killed (kill -9)" in said
    assert "the master, is frozen (SIGSTOP)" in said
    assert "the group is whole again: 3 of 3 in sync" in said


def test_another_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    command = [sys.executable, str(EXAMPLES / "building.py"), "--headless", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 1
    assert "has other files in it" in done.stdout
    assert (tmp_path / "mine.txt").read_text() == "precious"
