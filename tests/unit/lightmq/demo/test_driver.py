"""The driver object keeps what the child says and notices its end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lightmq.demo.driver import SparkDriver, SparkFailed

CHILD = """
import json, sys
def say(**event): print(json.dumps(event), flush=True)
print("noise of the JVM")
say(event="ready", version="4.x")
say(event="step", text="planning")
say(event="restarted", query="ledger", text="It goes on.")
say(event="batch", query="ledger", batch=1, rows=5, total=9, duration_ms=12)
for line in sys.stdin:
    word = line.strip()
    if word == "die": sys.exit(3)
    say(event={"drain": "drained", "stop": "stopped"}[word])
    if word == "stop": break
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkDriver:
    """A driver whose child is a small script instead of Spark."""
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    launcher = tmp_path / "python"
    launcher.write_text(f"#!/bin/sh\nexec {sys.executable} {script}\n")
    launcher.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(launcher))
    subject = SparkDriver(tmp_path / "spark.log")
    subject.start([])
    return subject


def test_progress_drain_and_stop(driver: SparkDriver) -> None:
    """Orders are answered; batches are kept by query; noise is ignored."""
    driver.order("drain", "drained", 20)
    assert driver.version == "4.x"
    assert (driver.progress["ledger"].batch, driver.progress["ledger"].total) == (1, 9)
    assert driver.step == "planning"
    assert driver.restarts == ["query ledger: It goes on."]
    driver.stop()
    driver.check()


def test_an_unexpected_end_is_a_failure(driver: SparkDriver) -> None:
    """A driver that dies is reported in one sentence, with its status and where its words are."""
    with pytest.raises(SparkFailed, match=r"^its driver process ended with status 3; .*spark\.log$"):
        driver.order("die", "drained", 20)
    driver.stop()
