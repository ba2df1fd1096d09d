"""Lengths of time and sizes as people type them: `7d`, `12h`, `500MB`, `2GiB`; a bare number is ms or bytes.

Invariant: what cannot be read is an error that shows the accepted forms. Pure functions.
"""

from __future__ import annotations

import re

from lightmq.cli.outcome import CommandFailed

_AMOUNT = re.compile(r"(\d{1,12})\s*([a-zA-Z]*)")
DURATIONS_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
SIZES_BYTES = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def duration_ms(text: str) -> int:
    """Milliseconds of a length of time; `forever` is 0. Raises CommandFailed."""
    return 0 if text == "forever" else _amount(text, DURATIONS_MS, "a length of time as 90s, 30m, 12h, 7d or forever")


def size_bytes(text: str) -> int:
    """Bytes of a size; `unlimited` is 0. Raises CommandFailed."""
    return 0 if text == "unlimited" else _amount(text, SIZES_BYTES, "a size as 500MB, 2GiB or unlimited")


def _amount(text: str, units: dict[str, int], form: str) -> int:
    found = _AMOUNT.fullmatch(text.strip())
    unit = units.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise CommandFailed(f"{text!r} is not {form}")
    return int(found[1]) * unit
