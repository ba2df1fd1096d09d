from __future__ import annotations

from mqtt_bridge.direction import JitteredBackoff


def test_pauses_double_up_to_the_longest_and_begin_again() -> None:
    backoff = JitteredBackoff(100, 500, lambda: 1.0)
    assert [backoff.pause_ms() for _ in range(5)] == [100, 200, 400, 500, 500]
    backoff.succeeded()
    assert backoff.pause_ms() == 100
    assert JitteredBackoff(100, 50, lambda: 1.0).pause_ms() == 50


def test_the_spread_takes_away_up_to_half() -> None:
    assert JitteredBackoff(100, 100, lambda: 0.0).pause_ms() == 50
