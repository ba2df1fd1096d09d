"""Times as people read and write them."""

from __future__ import annotations

import pytest

from lightmq.cli.admin.times import moment, time_ms
from lightmq.cli.outcome import CommandFailed
from runtime.clock import SystemClock


def test_moments() -> None:
    assert moment(1_790_000_000_000) == "2026-09-21T14:13:20Z"
    assert moment(None) == "-"


def test_spans_before_now_and_dates() -> None:
    before = SystemClock().now_ms()
    assert before - 600_000 <= time_ms("10m") <= SystemClock().now_ms() - 600_000
    assert time_ms("2026-09-21T14:13:20") == time_ms("2026-09-21T16:13:20+02:00") == 1_790_000_000_000
    assert time_ms("2026-09-21") == 1_789_948_800_000
    for text in ("soon", "10 parsecs", ""):
        with pytest.raises(CommandFailed):
            time_ms(text)
