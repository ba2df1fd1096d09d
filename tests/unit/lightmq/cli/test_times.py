"""Times, lengths of time and sizes as people read and write them."""

from __future__ import annotations

from typing import Annotated

import pytest
from cyclopts import App, Parameter

from lightmq.cli.outcome import CommandFailed
from lightmq.cli.times import Seconds, age, amount, duration_ms, moment, size_bytes, span, time_ms

NOW_MS = 1_790_000_000_000
"""2026-09-21T14:13:20Z"""
DAY_MS = 86_400_000
MIDNIGHT_MS = 1_789_948_800_000


def test_moments() -> None:
    assert moment(NOW_MS) == "2026-09-21T14:13:20Z"
    assert moment(None) == "-"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", NOW_MS - 600_000),
        ("10 min ago", NOW_MS - 600_000),
        ("1h30m", NOW_MS - 5_400_000),
        ("2 days ago", NOW_MS - 2 * DAY_MS),
        ("now", NOW_MS),
        ("2026-09-21T14:13:20", NOW_MS),
        ("2026-09-21 14:13:20", NOW_MS),
        ("2026-09-21T16:13:20+02:00", NOW_MS),
        ("2026-09-21T14:13:20Z", NOW_MS),
        ("2026-09-21", MIDNIGHT_MS),
        ("today", MIDNIGHT_MS),
        ("yesterday", MIDNIGHT_MS - DAY_MS),
        ("Yesterday 08:30", MIDNIGHT_MS - DAY_MS + 30_600_000),
        ("14:13:20", NOW_MS),
        (str(NOW_MS), NOW_MS),
        ("3", 3),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert time_ms(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["soon", "10 parsecs", "", "yesterday evening", "25:00", "2026-13-01", "10m 5"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(CommandFailed, match="yesterday"):
        time_ms(text, NOW_MS)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("7d", 604_800_000), ("90 s", 90_000), ("12H", 43_200_000), ("forever", 0), ("5", 5), ("1h30m", 5_400_000),
        ("1.5h", 5_400_000), ("7 days", 604_800_000), ("1 week 2 days", 777_600_000), ("250ms", 250),
    ],
)  # fmt: skip
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "size"), [("500MB", 500_000_000), ("2GiB", 2**31), ("unlimited", 0), ("7", 7), ("1.5 kb", 1500)]
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "d", "-7d", "7x", "1h30", "1h,30m", "seven days"])
def test_invalid_amounts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(CommandFailed, match="7d"):
        duration_ms(text)
    with pytest.raises(CommandFailed, match="500MB"):
        size_bytes(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.42, "0.4 s"), (12.4, "12 s"), (180, "3 min"), (3_900, "1 h 5 min"), (90_061, "1 d 1 h")],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_ages() -> None:
    assert age(NOW_MS - 180_000, NOW_MS) == "3 min ago"
    assert age(NOW_MS + 7_500_000, NOW_MS) == "in 2 h 5 min"
    assert (age(NOW_MS, NOW_MS), age(None)) == ("now", "-")


def test_amounts() -> None:
    assert [amount(each) for each in (0, 812, 1_500_000, 2.5e9)] == ["0 B", "812 B", "1.5 MB", "2.5 GB"]


def test_options_in_seconds() -> None:
    app = App()

    @app.default
    def wait(*, timeout: Annotated[Seconds, Parameter(help="Seconds.")] = 1.0) -> float:
        return timeout

    def given(text: str) -> float:
        return app(["--timeout", text], result_action="return_value", exit_on_error=False)

    assert [given(text) for text in ("10", "0.5", "90s", "2m")] == [10.0, 0.5, 90.0, 120.0]
    with pytest.raises(CommandFailed, match="30m"):
        given("soon")
