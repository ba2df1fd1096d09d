"""Why there is no record where one was asked for: three answers that are never the same.

    GONE      it was there and is not any more: it lies below the oldest offset of its queue, or below the begin of the
              log, or its queue was deleted. This never changes.
    NOT_YET   it lies at or above what the confirm position covers: it may be there already, or come, or be cut off
    DAMAGED   it is there and fails its checks: a copy of the file, or another broker of the group, may have it whole

Invariant: nothing durable is decided on NOT_YET or DAMAGED; who works in the background looks again later. No member is
falsy, and a record is a `memoryview`: one has to be told from the other by `isinstance`. Thread rule: plain values.
"""

from __future__ import annotations

from enum import Enum


class Absence(Enum):
    """What is answered in place of a record."""

    GONE = "gone"
    NOT_YET = "not yet"
    DAMAGED = "damaged"


Found = memoryview | Absence
"""The answer to the question for one record."""
