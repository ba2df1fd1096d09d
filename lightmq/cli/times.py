"""Times, lengths of time and sizes as people read and write them.

A time: `2026-11-22T10:15`, `yesterday`, `today 08:00`, `10:15`, `now`, a span before now (`10m`, `1h30m ago`),
or ms since 1970; UTC where no zone is given. A length: `90s`, `1h30m`, `1.5 h`, `7 days`. A size: `500MB`, `2GiB`.
Invariant: a text that is none of these is an error that shows the accepted forms. Pure but for the time of day.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from cyclopts import Parameter

from lightmq.cli.outcome import CommandMisused
from runtime.clock import SystemClock

_PART = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-zA-Z]*)\s*")
DURATIONS_MS = {
    "": 1, "ms": 1, "s": 1_000, "sec": 1_000, "second": 1_000, "m": 60_000, "min": 60_000, "minute": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000, "w": 604_800_000, "week": 604_800_000,
}  # fmt: skip
SIZES_BYTES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
UNITS_SHOWN = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
LENGTH_FORM = "a length of time as 90s, 30m, 1h30m, 7d or forever"
SIZE_FORM = "a size as 500MB, 2GiB or unlimited"
TIME_FORM = "neither a time as 2026-11-22T10:15, yesterday or 10:15, nor a span before now as 10m"


def moment(time_ms: int | None) -> str:
    """A time in ms as people read it, UTC; a dash for none."""
    if time_ms is None:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(time_ms: int | None, now_ms: int | None = None) -> str:
    """How long ago a time is, or in how long: `3 min ago`, `in 2 h 5 min`; a dash for none."""
    if time_ms is None:
        return "-"
    past_ms = (SystemClock().now_ms() if now_ms is None else now_ms) - time_ms
    if abs(past_ms) < 1_000:
        return "now"
    return f"{span(past_ms / 1000)} ago" if past_ms > 0 else f"in {span(-past_ms / 1000)}"


def span(seconds: float) -> str:
    """A length of time in its two largest units: `1 h 5 min`, `12 s`; below ten seconds with one decimal."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds else "0 s"
    left = round(seconds)
    parts: list[str] = []
    for name, unit in UNITS_SHOWN:
        if left >= unit and len(parts) < 2:
            parts.append(f"{left // unit} {name}")
            left %= unit
        elif parts:
            break
    return " ".join(parts)


def amount(size_bytes: float) -> str:
    """Bytes as people read them: `812 B`, `1.5 MB`."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def time_ms(text: str, now_ms: int | None = None) -> int:
    """A time in ms since 1970. Raises CommandFailed."""
    now_ms = SystemClock().now_ms() if now_ms is None else now_ms
    words = text.strip().lower().removesuffix("ago").strip()
    if words == "now":
        return now_ms
    if words.isdecimal():
        return int(words)
    if re.match(r"\d+(\.\d+)?\s*[a-z]", words) and "-" not in words:
        return now_ms - _length(words, text, TIME_FORM)
    try:
        found = _date(words, text.strip(), datetime.fromtimestamp(now_ms / 1000, UTC))
    except ValueError:
        raise CommandMisused(f"{text!r} is {TIME_FORM}") from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _date(words: str, text: str, now: datetime) -> datetime:
    """A day by its word with a time of day, or a date. Raises ValueError."""
    day, _, clock = words.partition(" ")
    if ":" in day and "-" not in day:
        day, clock = "today", day
    if day not in DAYS:
        return datetime.fromisoformat(text)
    midnight = datetime(now.year, now.month, now.day) + timedelta(days=DAYS[day])  # noqa: DTZ001  # UTC is put in later
    return datetime.fromisoformat(f"{midnight:%Y-%m-%d}T{clock or '00:00'}")


def duration_ms(text: str) -> int:
    """Milliseconds of a length of time, a bare number being ms; `forever` is 0. Raises CommandFailed."""
    return 0 if text == "forever" else _length(text, text, f"not {LENGTH_FORM}")


def size_bytes(text: str) -> int:
    """Bytes of a size; `unlimited` is 0. Raises CommandFailed."""
    if text == "unlimited":
        return 0
    found = _PART.fullmatch(text.strip())
    unit = SIZES_BYTES.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise CommandMisused(f"{text!r} is not {SIZE_FORM}")
    return round(float(found[1]) * unit)


def _length(words: str, text: str, complaint: str) -> int:
    """The sum of parts such as `1h30m`, in ms; a bare number stands alone."""
    words, at, total_ms, parts = words.strip(), 0, 0.0, 0
    while found := _PART.match(words, at):
        unit = _unit(found[2].lower(), DURATIONS_MS)
        if unit is None or (parts and not found[2]):
            break
        total_ms, at, parts = total_ms + float(found[1]) * unit, found.end(), parts + 1
    if not parts or at != len(words):
        raise CommandMisused(f"{text!r} is {complaint}")
    return round(total_ms)


def _unit(name: str, units: Mapping[str, int]) -> int | None:
    """A unit by its name, or by its plural of a whole word."""
    return units.get(name, units.get(name.removesuffix("s")) if len(name) > 3 else None)


def seconds(_type: Any, tokens: Any) -> float:
    """Convert the text of an option with a length of time: a bare number is seconds. Raises CommandFailed."""
    text = tokens[0].value
    try:
        return float(text)
    except ValueError:
        return _length(text, text, "no length of time as 10, 90s, 30m or 1h30m") / 1000


Seconds = Annotated[float, Parameter(converter=seconds)]
"""An option with a length of time; a bare number is seconds."""
