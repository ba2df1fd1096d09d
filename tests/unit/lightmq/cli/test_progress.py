"""Bars and colours are for terminals; the environment has the last word."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from lightmq.cli.progress import Lines, progress
from tests.support.clock import ManualClock

WORK = """
import sys
from lightmq.cli.outcome import fail
from lightmq.cli.progress import progress
with progress("checking the log") as report:
    report(25, 100)
    report(50, 100)
with progress("copying") as report:
    report(1234, 0)
fail("it went wrong")
"""


def on_terminal(**variables: str) -> bytes:
    """What a terminal gets from the work."""
    ours, theirs = pty.openpty()
    own = {name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    environment = own | {"TERM": "xterm", "COLUMNS": "100"} | variables
    process = subprocess.Popen([sys.executable, "-c", WORK], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65_536):
            shown += chunk
    except OSError:
        pass  # the other side is closed
    os.close(ours)
    assert process.wait(30) == 0
    return shown


def test_a_terminal_gets_bars_and_colours() -> None:
    shown = on_terminal()
    assert b"50 %" in shown
    assert b"1,234" in shown
    assert b"\x1b[31mlightmq:" in shown
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l"), "the cursor is back"


def test_no_color_is_respected() -> None:
    shown = on_terminal(NO_COLOR="1")
    assert b"50 %" in shown
    assert b"\x1b[3" not in shown
    assert b"lightmq: it went wrong" in shown


def test_a_dumb_terminal_gets_neither() -> None:
    assert on_terminal(TERM="dumb") == b"lightmq: it went wrong\r\n"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "lightmq: it went wrong\n"),
        ({"FORCE_COLOR": "1"}, "\x1b[31mlightmq:\x1b[0m it went wrong\n"),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, "lightmq: it went wrong\n"),
    ],
)
def test_a_pipe_gets_no_bar(variables: dict[str, str], expected: str) -> None:
    own = {name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    done = subprocess.run(
        [sys.executable, "-c", WORK], env=own | variables, capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout, done.stderr) == ("", expected)


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """When asked for: only what is new, not too often, and the end always."""
    clock = ManualClock()
    with progress("nothing said") as report:
        report(1, 2)
    lines = Lines("copying", clock)
    for passed_ms, done in ((0, 0), (10, 10), (500, 50), (1_000, 51), (2_000, 51), (1, 100), (1, 100)):
        clock.advance_ms(passed_ms)
        lines.report(done, 100)
    assert capsys.readouterr().err.splitlines() == ["copying: 0 %", "copying: 51 %", "copying: 100 %"]
    Lines("counting", clock).report(1_234, 0)
    assert capsys.readouterr().err == "counting: 1,234\n"
