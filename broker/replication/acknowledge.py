"""When a message counts as taken: on the master alone, on some replicas, or on all that could become master.

| mode  | acknowledged and shown when                                        | lost when the master is |
|-------|--------------------------------------------------------------------|-------------------------|
| async | it is in the master's log (its own flush rule)                     | yes                     |
| count | `count` copies, the master's among them, are flushed               | possible                |
| all   | every member of the effective SyncStateSet has flushed it, and at  | no, with at least two   |
|       | least `in_sync_min` are members                                    |                         |

A broker with `flush = "async"` counts as flushed what is written: it survives a killed process, not a machine.
Invariant: with `all` nothing is acknowledged, nor shown, that an elected master could lack. Pure values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from remoting.protocol.errors import LocalMisuse

ASYNC, COUNT, ALL = "async", "count", "all"
MODES = (ASYNC, COUNT, ALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """The rule of one broker group."""

    mode: str = ALL
    count: int = 1
    """With `count`: copies that make a message taken."""
    in_sync_min: int = 1
    """With `all`: members of the SyncStateSet without which nothing is taken."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise LocalMisuse(f"acknowledge mode {self.mode!r} is none of {', '.join(MODES)}")
        if self.count < 1 or self.in_sync_min < 1:
            raise LocalMisuse("at least one copy makes a message taken")

    @property
    def members_min(self) -> int:
        """Members the SyncStateSet needs before its confirm position may move."""
        return self.in_sync_min if self.mode == ALL else 1

    def limit(self, own_end: int, acknowledged: Iterable[int], confirm: int) -> int | None:
        """Return up to where messages count as taken, None when the local flush rule decides alone.

        `acknowledged` are the flushed ends of the other in-sync replicas, `confirm` what all of them share.
        """
        if self.mode == ASYNC:
            return None
        if self.mode == ALL:
            return confirm
        ends = sorted((own_end, *acknowledged), reverse=True)
        return ends[self.count - 1] if self.count <= len(ends) else 0

    def accepts(self, in_sync: int) -> bool:
        """Whether an append has a chance with `in_sync` reachable members, the master counted."""
        if self.mode == COUNT:
            return in_sync >= self.count
        return self.mode == ASYNC or in_sync >= self.in_sync_min
