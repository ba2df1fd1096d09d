"""What migrations that follow tell about themselves: that they run, and why queues of theirs stand still.

    name of the source -> when it told last, why the whole migration does not get on, and why single queues do not

It is kept in memory, so that a broker whose disk is full takes it too, and counts for `REPORT_MS` after it came: a
migration that tells nothing any more has ended or cannot reach this broker. Bounded: `NAMES_MAX` sources, the one that
told last longest ago goes first, and `STANDING_MAX` queues of each.

Invariant: nothing here decides anything; it is shown. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

NAMES_MAX = 64
STANDING_MAX = 1_000
"""Most queues of one migration that are named; `standing_count` has all."""
REASON_CHARS_MAX = 300
REPORT_MS = 15_000
"""How long a report counts; migrations tell every two seconds."""


class StandingQueue(msgspec.Struct):
    """A queue that does not get on."""

    topic: str
    source: str
    """Names the source queue."""
    reason: str
    since_ms: int
    """When it began to stand still, by the migration's clock."""


class FollowerReport(msgspec.Struct):
    """What a migration tells."""

    failure: str = ""
    """Why the migration as a whole does not get on."""
    standing: list[StandingQueue] = msgspec.field(default_factory=list)
    standing_count: int = 0


class FollowerReports:
    """The last report of each migration."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[int, FollowerReport]] = {}

    def tell(self, name: str, report: FollowerReport, now_ms: int) -> None:
        """Take a report, cut to its bounds; `now_ms`: monotonic."""
        report.failure = report.failure[:REASON_CHARS_MAX]
        report.standing_count = len(report.standing)
        report.standing = list(_cut(report.standing[:STANDING_MAX]))
        self._reports.pop(name, None)
        self._reports[name] = now_ms, report
        while len(self._reports) > NAMES_MAX:
            del self._reports[next(iter(self._reports))]

    def last(self, name: str, now_ms: int) -> FollowerReport | None:
        """What the migration of this source told last; None: nothing for `REPORT_MS`."""
        at_ms, report = self._reports.get(name, (0, None))
        return report if report is not None and now_ms - at_ms < REPORT_MS else None


def _cut(rows: Iterable[StandingQueue]) -> Iterable[StandingQueue]:
    for row in rows:
        row.reason = row.reason[:REASON_CHARS_MAX]
        yield row
