from __future__ import annotations

import pytest

from remoting import clock


def test_the_machines_clocks_agree() -> None:
    before = clock.monotonic_ns()
    assert before <= clock.monotonic_s() * 1e9 <= clock.monotonic_ns() + 1_000
    assert clock.now_ns() // 1_000_000 <= clock.now_ms()


def test_another_clock_takes_effect_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now_ns", lambda: 5_000_000)
    assert clock.now_ms() == 5
