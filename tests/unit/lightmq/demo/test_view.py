"""The view draws a snapshot in a terminal and prints lines elsewhere."""

from __future__ import annotations

import io
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console

from lightmq.demo.accounting import Accounting, LedgerRow, Line
from lightmq.demo.view import (
    Figures,
    LiveView,
    QueryProgress,
    SparkDriver,
    SparkFailed,
    chosen_sensors,
    draw,
    percentile,
    print_summary,
    series,
    write_html,
    write_png,
)


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    """A console that writes into a string."""
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=120), text


def snapshot() -> Figures:
    """Some figures."""
    queries = {"ledger": QueryProgress(batch=3, rows=40, total=123, duration_ms=500)}
    return Figures(phase="running", elapsed_s=12, sent=130, acknowledged=129, queries=queries, round_trip_p50_ms=420)


def test_percentiles() -> None:
    """Without values there is nothing to show."""
    assert percentile([], 0.5) is None
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0], 0.95) == 1.0


def test_drawing_names_what_matters() -> None:
    """Counts, lag, batch and latency are on the picture."""
    out, text = console(terminal=False)
    out.print(draw(snapshot()))
    for word in ("129 acknowledged of 130", "confirm lag", "ledger", "123", "p50 420 ms"):
        assert word in text.getvalue()


def test_plain_lines_keep_their_pace() -> None:
    """One line at a time, a new one when the phase changes."""
    out, text = console(terminal=False)
    with LiveView(out, plain=True) as view:
        shot = snapshot()
        view.show(shot)
        view.show(shot)
        shot.phase = "draining"
        view.show(shot)
    assert len(text.getvalue().strip().splitlines()) == 2


def test_the_live_view_starts_and_ends() -> None:
    """In a terminal the picture is redrawn in place."""
    out, text = console(terminal=True)
    with LiveView(out, plain=False) as view:
        view.show(snapshot())
        view.note("a word")
    assert "a word" in text.getvalue()


def test_the_summary_says_whether_it_holds() -> None:
    """An equation that fails stands out."""
    out, text = console(terminal=False)
    lines = (Line("readings", {"published": 2, "stored": 2}), Line("commands", {"sent": 1, "delivered": 0}))
    print_summary(out, Accounting(lines), [100.0], ["chart: x.png"])
    shown = text.getvalue()
    assert "published 2 = stored 2  holds" in shown
    assert "sent 1 = delivered 0  DOES NOT HOLD" in shown
    assert "chart: x.png" in shown


ROWS = [
    LedgerRow(f"d-{index}", f"s{index % 2}", float(index), 0, index, 1_700_000_000_000 + index * 1000)
    for index in range(40)
]
COMMANDS = [{"id": "c", "sensor": "s1", "value": 39.0, "time_ms": 1_700_000_039_000}]


def test_png_and_html(tmp_path: Path) -> None:
    """A picture by its signature, a page that carries its own script."""
    write_png(tmp_path / "a.png", ROWS, COMMANDS)
    write_html(tmp_path / "a.html", ROWS, COMMANDS)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "a.html").read_text()
    assert "s1: command" in page
    assert 'src="http' not in page


def test_nothing_to_draw_is_no_failure(tmp_path: Path) -> None:
    """A run that was ended at once still ends with its files."""
    write_png(tmp_path / "a.png", [], [])
    write_html(tmp_path / "a.html", [], [])
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<html" in (tmp_path / "a.html").read_text()


def test_sensors_with_commands_come_first() -> None:
    """The picture shows what happened."""
    assert chosen_sensors(sorted(series(ROWS)), COMMANDS) == ["s1", "s0"]


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
