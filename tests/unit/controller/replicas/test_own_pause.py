"""What counts as a pause of our own."""

from __future__ import annotations

from controller.replicas.live_table import OwnPause


def test_a_tick_that_is_much_too_late_was_a_pause() -> None:
    pause = OwnPause(100)
    assert [pause.tick(now_ms) for now_ms in (5_000, 5_100, 5_300, 5_301, 5_602, 5_702)] == [0, 0, 0, 0, 201, 0]
    assert pause.tick(15_802) == 10_000


def test_without_an_interval_nothing_is_a_pause() -> None:
    pause = OwnPause(0)
    assert [pause.tick(now_ms) for now_ms in (0, 1_000_000)] == [0, 0]
