"""Many names in the order of their bytes, for lists that are read page by page.

The names come from a table of the store, which has them in no order. They are sorted when somebody looks, in steps
with other work between them, follow the table from then on, and are dropped when nobody has looked for `IDLE_MS`. A
page then costs a search, whatever the number of names; the first page does not wait for the sorting, it costs a look
at each name.
Invariant: `names` is sorted and has each name once; a change made while they are being sorted is in the result.
Loop thread only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator

IDLE_MS = 600_000
"""Without a reader for so long the names are dropped: they take some 100 bytes each."""
STEP = 2_000
"""Names looked at in one turn of the loop: about a millisecond."""


class SortedNames:
    """The names of one table, in order."""

    def __init__(self, table: Callable[[], Iterator[Iterable[bytes]]]) -> None:
        """`table` iterates over the names as they are, each step the work of about one turn; the table may change
        between two steps."""
        self._table = table
        self.names: list[bytes] | None = None
        """None until they are wanted."""
        self._changes: list[tuple[bytes, bool]] | None = None
        """What changed while they are being sorted."""
        self._making: asyncio.Future[None] | None = None
        self._asked_ms = 0

    def ready(self, now_ms: int) -> list[bytes] | None:
        """The names, None while they are not sorted: what is shown then costs a look at each name, then `begin`."""
        self._asked_ms = now_ms
        return self.names

    async def wanted(self, now_ms: int) -> list[bytes]:
        """The names; sorts them when there are none."""
        self._asked_ms = now_ms
        while self.names is None:
            await asyncio.shield(self.begin())
        return self.names

    async def following(self, after: bytes, count: int, now_ms: int) -> list[bytes]:
        """The first names behind `after`; sorts them all for the next page, when they are not, and does not wait."""
        self._asked_ms = now_ms
        if self.names is not None:
            at = bisect_right(self.names, after)
            return self.names[at : at + count]
        found: list[bytes] = []
        for step in self._table():
            last = found[-1] if len(found) == count else None
            some = [name for name in step if name > after and (last is None or name < last)]
            found = sorted({*found, *some})[:count]
            await asyncio.sleep(0)
        if self.names is None:
            self.begin()
        return found

    def begin(self) -> asyncio.Future[None]:
        """Sort the names for later pages, beside other work."""
        if self._making is None:
            self._making = asyncio.ensure_future(self._make())
        return self._making

    def maintain(self, now_ms: int) -> None:
        """Free the memory when nobody looks any more."""
        if self._making is None and now_ms - self._asked_ms > IDLE_MS:
            self.names = None

    def changed(self, name: bytes, *, exists: bool) -> None:
        """A name is in the table now, or no longer."""
        if self._changes is not None:
            self._changes.append((name, exists))
        elif self.names is not None:
            self._apply(name, exists=exists)

    async def _make(self) -> None:
        self._changes = []
        try:
            runs: list[list[bytes]] = []
            for step in self._table():
                runs.append(sorted(step))
                await asyncio.sleep(0)
                while len(runs) > 1 and len(runs[-2]) <= 2 * len(runs[-1]):
                    runs[-2:] = [await _merged(runs[-2], runs[-1])]
            while len(runs) > 1:
                runs[-2:] = [await _merged(runs[-2], runs[-1])]
            self.names = runs[0] if runs else []
            changes, self._changes = self._changes, None
            for name, exists in changes:
                self._apply(name, exists=exists)
        finally:
            self._changes = self._making = None

    def _apply(self, name: bytes, *, exists: bool) -> None:
        if self.names is None:
            return
        at = bisect_left(self.names, name)
        known = at < len(self.names) and self.names[at] == name
        if exists and not known:
            insort(self.names, name)
        elif known and not exists:
            del self.names[at]


async def _merged(one: list[bytes], other: list[bytes]) -> list[bytes]:
    """Both in one order, a bounded piece of each in a turn; sorting merges the pieces, as they are in order."""
    if not one or not other or one[-1] < other[0]:
        return one + other
    made: list[bytes] = []
    at = beside = 0
    while at < len(one) and beside < len(other):
        bound = min(one[min(at + STEP, len(one)) - 1], other[min(beside + STEP, len(other)) - 1])
        end, end_beside = bisect_right(one, bound, at), bisect_right(other, bound, beside)
        made += sorted(one[at:end] + other[beside:end_beside])
        at, beside = end, end_beside
        await asyncio.sleep(0)
    made += one[at:] or other[beside:]
    return made
