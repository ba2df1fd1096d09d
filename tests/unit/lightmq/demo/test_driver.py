"""Spark's process: its words are heard, its loss is noticed and mended. A small script stands for Spark."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from lightmq.demo.driver import REVIVALS_MAX, SparkDriver, SparkFailed, how_it_ended

CHILD = """
import json, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever whoever started the tests had it set to
def say(**event): print(json.dumps(event), flush=True)
print("noise of the JVM")
say(event="ready", version="4.x")
say(event="complete")
say(event="step", text="planning")
say(event="restarted", query="ledger", text="It goes on.")
say(event="batch", query="ledger", batch=1, rows=5, total=9, duration_ms=12)
for line in sys.stdin:
    word = line.strip()
    if word == "die": sys.exit(3)
    if word == "lose Java": say(event="failed", query="ledger", error="no Java", lost=True); continue
    if word == "turn deaf": signal.signal(signal.SIGTERM, signal.SIG_IGN); word = "drain"
    if word == "fail": say(event="failed", query="ledger", error="no such column"); continue
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


LATE_CHILD = """
import json, sys
assert sys.argv[1:] == ["--later"], sys.argv
words = json.loads(sys.stdin.readline())
print(json.dumps({"event": "step", "text": " ".join(words)}), flush=True)
print(json.dumps({"event": "ready", "version": "4.x"}), flush=True)
sys.stdin.readline()
print(json.dumps({"event": "stopped"}), flush=True)
"""


def test_a_prepared_driver_is_told_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(LATE_CHILD)
    driver = SparkDriver(tmp_path / "spark.log", (str(script),))
    driver.prepare()
    driver.start(["--host", "here"])
    driver.order("stop", "stopped", 60)
    assert driver.step == "--host here"
    driver.stop()
    assert not driver.is_tidying


def test_a_prepared_driver_that_has_ended_is_replaced(tmp_path: Path) -> None:
    """The one that takes its place has the arguments on its command line."""
    script = tmp_path / "child.py"
    script.write_text('import sys\nprint(\'{"event": "step", "text": "%s"}\' % \' \'.join(sys.argv[1:]), flush=True)\n')
    driver = SparkDriver(tmp_path / "spark.log", (str(script),))
    driver.prepare()
    with driver._said:
        assert driver._said.wait_for(lambda: driver._heard.get("ended"), 60)
    driver.start(["--host", "here"])
    with driver._said:
        assert driver._said.wait_for(lambda: driver._heard.get("ended"), 60)
    assert driver.step == "--host here"


def test_a_killed_driver_is_gone(driver: SparkDriver) -> None:
    driver.order("drain", "drained", 20)
    driver.kill()
    assert driver.status == -signal.SIGKILL
    driver.stop()


def test_an_unexpected_end_is_a_failure(driver: SparkDriver) -> None:
    """A driver that dies is reported in one sentence, with its status and the place of its output."""
    with pytest.raises(SparkFailed, match=r"^its driver process ended with status 3; .*spark\.log$"):
        driver.order("die", "drained", 20)
    driver.stop()


def test_it_is_warm_when_every_query_has_made_a_batch(driver: SparkDriver) -> None:
    driver.order("drain", "drained", 20)
    assert driver.is_warm
    driver.stop()


@pytest.mark.parametrize("loss", ["die", "lose Java"])
def test_what_was_lost_starts_again(driver: SparkDriver, loss: str) -> None:
    """A process that has ended, or whose Java has; rows are counted on; after three times it is given up."""
    for number in range(1, REVIVALS_MAX + 1):
        assert driver.revive() == ""
        with pytest.raises(SparkFailed):
            driver.order(loss, "drained", 20)
        sentence = driver.revive()
        assert f"start {number} of at most {REVIVALS_MAX}" in sentence
        assert sentence.count("\n") == 0
        driver.order("drain", "drained", 20)
        assert driver.progress["ledger"].total == 9 * (number + 1)
    with pytest.raises(SparkFailed):
        driver.order(loss, "drained", 20)
    with pytest.raises(SparkFailed):
        driver.revive()
    driver.stop()


def test_it_can_be_abandoned_at_any_moment(driver: SparkDriver) -> None:
    """Before it has said a word, and after it was; the second time there is nothing to do."""
    driver.abandon()
    assert driver.status in (-signal.SIGTERM, -signal.SIGKILL)
    driver.stop()
    SparkDriver(Path("unused.log")).abandon()


@pytest.mark.parametrize(("word", "end"), [("drain", signal.SIGTERM), ("turn deaf", signal.SIGKILL)])
def test_it_is_asked_to_end_before_it_is_made_to(
    driver: SparkDriver, monkeypatch: pytest.MonkeyPatch, word: str, end: signal.Signals
) -> None:
    """Its Java removes its files when it is asked; one that does not listen ends all the same."""
    monkeypatch.setattr("lightmq.demo.driver.ABANDON_S_MAX", 30.0 if end is signal.SIGTERM else 0.2)
    driver.order(word, "drained", 20)
    driver.abandon()
    assert driver.status == -end


def test_a_query_that_was_given_up_is_no_loss(driver: SparkDriver) -> None:
    """The same query would fail again."""
    with pytest.raises(SparkFailed):
        driver.order("fail", "drained", 20)
    with pytest.raises(SparkFailed, match="no such column"):
        driver.revive()
    assert driver.revivals == 0
    driver.stop()


def test_an_end_is_named_as_people_know_it() -> None:
    assert how_it_ended(-9) == "was ended by SIGKILL"
    assert how_it_ended(3) == "ended with status 3"
