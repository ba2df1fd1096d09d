from __future__ import annotations

import pytest

from runtime.clock import Clock, SystemClock
from tests.support.clock import ManualClock


def test_system_clock_reads_wall_time_and_never_goes_back() -> None:
    clock: Clock = SystemClock()
    first = clock.monotonic_ns()
    assert clock.now_ms() > 1_700_000_000_000
    assert clock.now_ns() // 1_000_000 >= clock.now_ms() - 60_000
    assert clock.monotonic_ns() >= first


def test_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(wall_ms=5, monotonic_ns=7)
    assert (clock.now_ms(), clock.monotonic_ns()) == (5, 7)
    clock.advance_ms(3)
    assert (clock.now_ms(), clock.monotonic_ns()) == (8, 3_000_007)
    assert clock.now_ns() == 8_000_000
    clock.set_wall_ms(1)
    assert (clock.now_ms(), clock.monotonic_ns()) == (1, 3_000_007)
    with pytest.raises(AssertionError):
        clock.advance_ms(-1)
