"""Load averages with a manual clock."""

from __future__ import annotations

import pytest

from mqtt_proxy.sys_topics import Loads


def read(loads: Loads) -> dict[tuple[str, int], float]:
    return {(name, window): mean for name, window, mean in loads.items()}


def test_the_first_sample_is_no_rate() -> None:
    """A proxy that counted a million before the first sample has a load of 0."""
    loads = Loads()
    loads.sample({"x": 10**6}, 5_000)
    assert read(loads) == {("x", 1): 0, ("x", 5): 0, ("x", 15): 0}


def test_a_steady_rate_is_reached_by_the_short_window_first() -> None:
    """Ten a second are 600 a minute; after one minute the first window has two thirds of it."""
    loads = Loads()
    for second in range(0, 61, 10):
        loads.sample({"x": second * 10}, second * 1_000)
    after = read(loads)
    assert after["x", 1] == pytest.approx(600 * (1 - 0.367879), rel=1e-3)
    assert after["x", 1] > after["x", 5] > after["x", 15] > 0
    for second in range(70, 3_601, 10):
        loads.sample({"x": second * 10}, second * 1_000)
    assert read(loads)["x", 15] == pytest.approx(600, rel=0.03)


def test_time_that_stands_still_changes_nothing() -> None:
    """The next step counts for both."""
    loads = Loads()
    loads.sample({"x": 0}, 0)
    loads.sample({"x": 100}, 0)
    assert read(loads)["x", 1] == 0
    loads.sample({"x": 100}, 60_000)
    assert read(loads)["x", 1] == pytest.approx(100 * (1 - 0.367879), rel=1e-3)
