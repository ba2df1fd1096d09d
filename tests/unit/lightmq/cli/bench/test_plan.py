"""When a message is due, and when what is missing is lost."""

from __future__ import annotations

import pytest

from lightmq.cli.bench import plan as module
from lightmq.cli.bench.plan import WINDOW, WINDOW_MAX, Drain, LoadPlan


def test_an_even_rate() -> None:
    plan = LoadPlan(2, 1, 100.0, 10.0, 100, "t")
    assert [plan.upto(passed_s, 0, 0) for passed_s in (0.0, 0.5, 9.995, 11.0)] == [1, 51, 1_000, 1_000]
    assert plan.upto(9.0, 0, 0) == 901
    assert plan.upto(9.0, 800, 2 * WINDOW_MAX) == 800, "no room"


def test_as_fast_as_answered() -> None:
    plan = LoadPlan(2, 1, 0.0, 10.0, 100, "t")
    assert plan.upto(5.0, 1_000, 2 * WINDOW - 3) == 1_003
    assert plan.upto(10.0, 1_000, 0) == 1_000, "the time is over"


def test_runs_differ() -> None:
    assert LoadPlan(1, 1, 1.0, 1.0, 24, "t").run != LoadPlan(1, 1, 1.0, 1.0, 24, "t").run


def test_waiting_ends_when_all_is_there_or_nothing_more_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    left = 3
    drain = Drain(lambda: left)
    assert not drain.over()
    left = 0
    assert drain.over()
    monkeypatch.setattr(module, "DRAIN_S", 0.0)
    left = 2
    assert Drain(lambda: left).over()
