"""The view draws a snapshot in a terminal and prints lines elsewhere."""

from __future__ import annotations

import io
import threading

from rich.console import Console

from lightmq.demo.accounting import Accounting, Line
from lightmq.demo.driver import QueryProgress
from lightmq.demo.view import Figures, LiveView, draw, percentile, print_summary


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


def test_a_line_without_news_comes_seldom() -> None:
    """But it comes: nobody is to think that it stands still."""
    out, text = console(terminal=False)
    with LiveView(out, plain=True) as view:
        shot = snapshot()
        for second in range(25):
            shot.elapsed_s = 12.0 + second
            view.show(shot)
    assert len(text.getvalue().strip().splitlines()) == 4


def test_a_wait_is_not_silent() -> None:
    out, text = console(terminal=False)
    with LiveView(out, plain=True) as view:
        said = threading.Event()
        note = view.note
        view.note = lambda line: (note(line), said.set())  # type: ignore[method-assign, assignment]
        with view.waiting("waiting for the picture", interval_s=0.01):
            assert said.wait(20)
    assert text.getvalue().startswith("waiting for the picture, for 0 s")


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
    lines = (Line("readings", {"sent": 2, "stored": 2}), Line("commands", {"sent": 1, "delivered": 0}))
    print_summary(out, Accounting(lines), [100.0], ["picture: x.png"])
    shown = text.getvalue()
    assert "sent 2 = stored 2  holds" in shown
    assert "sent 1 = delivered 0  DOES NOT HOLD" in shown
    assert "picture: x.png" in shown
