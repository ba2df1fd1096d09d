"""A recorded series as readings: a CSV file with a time and a value in each line.

Invariant: every line of the file becomes one reading or a named error; nothing is skipped silently.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path


class BadSeries(ValueError):
    """The file is not a series of (time, value); the text names the line."""


def read_series(path: Path) -> Iterator[tuple[int, float]]:
    """Yield (time in ms since 1970 UTC, value) for each line after the header."""
    with path.open(newline="") as lines:
        rows = csv.reader(lines)
        header = next(rows, None)
        if header is None or len(header) < 2:
            raise BadSeries(f"{path}: the first line must name two columns: timestamp,value")
        for number, row in enumerate(rows, start=2):
            try:
                moment = datetime.fromisoformat(row[0])
                value = float(row[1])
            except (IndexError, ValueError) as reason:
                raise BadSeries(f"{path}, line {number}: {reason}") from reason
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            yield int(moment.timestamp() * 1000), value
