"""What one client sends: totals and rates, whoever looks and whenever."""

from __future__ import annotations

import pytest

from mqtt_proxy.traffic import WINDOW_MS, Flow, Windows
from tests.support.clock import ManualClock

OLD_MS = 3_600_000


def passing(windows: Windows, clock: ManualClock, flow: Flow, seconds: int, per_second: int) -> None:
    """So many messages of ten bytes in each of these seconds, in fifty reads."""
    for _ in range(50 * seconds):
        clock.advance_ms(20)
        windows.move_on()
        if per_second:
            flow.add_bytes(10 * per_second // 50)
            flow.add_messages(per_second // 50)


def test_a_steady_rate_is_seen_at_any_time() -> None:
    clock = ManualClock()
    windows = Windows(clock)
    flow = Flow(windows)
    for second in range(1, 40):
        passing(windows, clock, flow, 1, 400)
        assert flow.rates(second * 1_000) == pytest.approx((400, 4_000), rel=0.01), second
    assert (flow.messages, flow.size_bytes) == (39 * 400, 39 * 4_000)


def test_looking_changes_nothing() -> None:
    clock = ManualClock()
    windows = Windows(clock)
    seen, unseen = Flow(windows), Flow(windows)
    for count in (3, 0, 50, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1):
        clock.advance_ms(700)
        windows.move_on()
        for flow in (seen, unseen):
            if count:
                flow.add_messages(count)
        seen.rates(OLD_MS)
        assert seen.rates(OLD_MS) == unseen.rates(OLD_MS)


def test_what_has_ended_is_forgotten_after_two_windows() -> None:
    clock = ManualClock()
    windows = Windows(clock)
    flow = Flow(windows)
    passing(windows, clock, flow, 20, 100)
    passing(windows, clock, flow, 4, 0)
    assert 0 < flow.rates(OLD_MS)[0] < 100
    passing(windows, clock, flow, 7, 0)
    assert flow.rates(OLD_MS) == (0.0, 0.0)
    assert flow.messages == 2_000


def test_the_first_batch_after_a_pause_counts() -> None:
    clock = ManualClock()
    windows = Windows(clock)
    flow = Flow(windows)
    passing(windows, clock, flow, 60, 0)
    flow.add_messages(500)
    assert flow.rates(OLD_MS)[0] == pytest.approx(500 / (WINDOW_MS / 1_000))
    passing(windows, clock, flow, 4, 0)
    assert flow.rates(OLD_MS)[0] == pytest.approx(500 / 9)


def test_a_young_connection_has_the_rate_of_its_age() -> None:
    clock = ManualClock()
    windows = Windows(clock)
    passing(windows, clock, Flow(windows), 30, 0)
    flow = Flow(windows)
    flow.add_messages(40)
    assert flow.rates(100)[0] == 40.0
    clock.advance_ms(2_000)
    assert flow.rates(2_000)[0] == 20.0
