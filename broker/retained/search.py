"""Which retained messages a new subscription is to be sent, found in turns of the loop.

A filter such as `#` may match hundreds of thousands of them, and other clients do not wait for that: `RetainedSearches`
looks at `NODES_PER_TURN` nodes of the topic tree in a turn, one search after the other. Topics change meanwhile. A
message that replaced another since the subscription comes by the subscription, so it is left out; one that retention
has only moved comes by nothing else, so it is not.

Invariant: each search is reported once, and what was retained when it began, and still is, is in the report. Loop
thread only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from broker.store.index.absence import Absence
from remoting.protocol.records.record import RecordView

if TYPE_CHECKING:
    from broker.retained.feature import Retained
    from broker.store.log_store import LogStore

NODES_PER_TURN = 2_000
"""Nodes of the topic tree, a few milliseconds of work."""

Found = list[tuple[int, list[int]]]
"""(number of a filter, log positions of the retained messages it matches), of filters that match any."""
Done = Callable[[Found], None]


class _Search:
    """The filters of one SUBSCRIBE."""

    __slots__ = ("_below", "_filters", "_number", "_retained", "_walk", "done", "found", "newer")

    def __init__(self, retained: Retained, filters: Sequence[tuple[int, bytes]], below: int, done: Done) -> None:
        self._retained = retained
        self._filters = iter(filters)
        self._below = below
        self._number = -1
        self._walk: Iterator[tuple[bytes, int] | None] = iter(())
        self.done = done
        self.found: dict[int, list[int]] = {}
        self.newer: list[tuple[int, int]] = []
        """(number of a filter, position) of messages written since the search began."""

    def go_on(self, nodes: int) -> bool:
        """Look at so many nodes; whether everything has been looked at."""
        while nodes > 0:
            seen = list(islice(self._walk, nodes))
            nodes -= len(seen) or 1
            if seen:
                self._take(sorted([one[1] for one in seen if one is not None]))
                continue
            following = next(self._filters, None)
            if following is None:
                return True
            self._number, self._walk = following[0], self._retained.walk(following[1])
        return False

    def _take(self, positions: list[int]) -> None:
        cut = bisect_left(positions, self._below)
        self.newer += [(self._number, position) for position in positions[cut:]]
        self.add(self._number, positions[:cut])

    def add(self, number: int, positions: list[int]) -> None:
        """These belong to the report."""
        if positions:
            self.found.setdefault(number, []).extend(positions)


class RetainedSearches:
    """The searches under way."""

    def __init__(self, retained: Retained, store: LogStore) -> None:
        self._retained = retained
        self._store = store
        self._waiting: deque[_Search] = deque()
        self._turn: asyncio.Handle | None = None

    def begin(self, filters: Sequence[tuple[int, bytes]], done: Done) -> None:
        """Search for what is retained now of (number, filter); `done` gets what was found, at once if that is little
        work.
        """
        search = _Search(self._retained, filters, self._store.end_position, done)
        if search.go_on(NODES_PER_TURN):
            done(list(search.found.items()))
            return
        self._waiting.append(search)
        self._schedule()

    def stop(self) -> None:
        """Search no more, and tell nobody."""
        self._waiting.clear()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _schedule(self) -> None:
        if self._turn is None and self._waiting:
            self._turn = asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._turn = None
        search = self._waiting.popleft()
        try:
            if not search.go_on(NODES_PER_TURN):
                self._waiting.append(search)
            elif search.newer:  # they can be read once they are confirmed
                self._store.when_confirmed(self._store.end_position, partial(self._end, search))
            else:
                self._end(search, None)
        finally:
            self._schedule()  # the fault of one holds up no other

    def _end(self, search: _Search, error: Exception | None) -> None:
        for number, position in search.newer if error is None else ():
            if self._is_moved(position):
                search.add(number, [position])
        search.done(list(search.found.items()))

    def _is_moved(self, position: int) -> bool:
        """Whether a message was only written again, to keep it: it is in no queue then."""
        record = self._store.reading.read_at(position)
        return not isinstance(record, Absence) and not RecordView(record).dispatch()
