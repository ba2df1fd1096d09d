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

    async def wanted(self, now_ms: int) -> list[bytes]:
        """The names; sorts them when there are none."""
        self._asked_ms = now_ms
        while self.names is None:
            await asyncio.shield(self._begin())
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
            self._begin()
        return found

    def _begin(self) -> asyncio.Future[None]:
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
                    await _merge(runs)
            while len(runs) > 1:
                await _merge(runs)
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


async def _merge(runs: list[list[bytes]]) -> None:
    """Make one of the last two runs: sorting finds that they are sorted, and merges them."""
    last = runs.pop()
    runs[-1] += last
    runs[-1].sort()
    await asyncio.sleep(0)
