"""When a group without controllers confirms: more than half of its members have it on their disks.

    positions on the disks   70  90 120        the second highest of three is confirmed: 90
    of the present epoch     |epoch begins at 80: 90 is above its first byte, so 90 is confirmed; 80 would not be

The members are fixed by the configuration. Invariant: nothing is confirmed by counting before a byte of the present
epoch is on a majority of the disks (Raft, section 5.4.2): the bytes of an earlier epoch may be on a majority and still
be cut off by the next master. Nothing is confirmed by a broker that does not lead any more. Pure; one owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


def majority_of(members: int) -> int:
    """The smallest majority of so many."""
    return members // 2 + 1


@dataclass(frozen=True, slots=True)
class Majority:
    """The rule of one master in one epoch."""

    members: frozenset[int]
    """Ids of all members, the master's among them."""
    still_leads: Callable[[], bool]
    """Whether the master has not voted for another one, or resigned, since."""

    @property
    def size(self) -> int:
        """The smallest majority."""
        return majority_of(len(self.members))

    def confirmed(self, own_end: int, acknowledged: Iterable[int], epoch_start: int, confirm: int) -> int:
        """The confirm position, given the ends on the disks here and at the other members; it never falls."""
        ends = sorted((own_end, *acknowledged), reverse=True)
        if len(ends) < self.size or not self.still_leads():
            return confirm
        end = ends[self.size - 1]
        return max(confirm, end) if end > epoch_start else confirm
