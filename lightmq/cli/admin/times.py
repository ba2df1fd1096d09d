"""Times as people read and write them: `2026-11-22T10:15:00Z`, and spans such as `10m` before now.

Invariant: a text that is neither is an error that shows the accepted forms.
"""

from __future__ import annotations

from datetime import UTC, datetime

from lightmq.cli.admin.topics import duration_ms
from lightmq.cli.outcome import CommandFailed
from runtime.clock import SystemClock


def moment(time_ms: int | None) -> str:
    """A time in ms as people read it, UTC; a dash for none."""
    if time_ms is None:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def time_ms(text: str) -> int:
    """A time in ms: a span before now (`10m`, `2h`), a date or a date with a time, UTC where no zone is given."""
    if text[:1].isdigit() and "-" not in text:
        return SystemClock().now_ms() - duration_ms(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise CommandFailed(f"{text!r} is neither a time as 2026-11-22T10:15 nor a span before now as 10m") from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
