"""Gives back the index tail's rows of queues that have been deleted.

Ids are used once, so rows at the same place are never needed again. The table of names says which pages of ids have no
queue any more; the rows of such a page lie together and go back to the system, memory and disk, once no entry of them
is in the tail and none is waiting to be confirmed: nothing writes to them from then on. The deletions themselves must
be certain by then: a log that is cut in front of them has the queues again, with the offsets in these rows.

Invariant: rows of a queue that exists or may exist again, of ids that may still be given out, and of entries in the
tail stay. A step does a bounded part. Loop thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker.store.index.queue_index import QueueIndex
from broker.store.state.name_table import PAGE, NameTable

RANGES_PER_STEP = 32
"""Stretches of ids looked at in one step."""
RANGE_IDS_MAX = 16_384


class EndedRows:
    """The stretches of ids without queues whose rows are still kept."""

    def __init__(self, names: NameTable, index: QueueIndex, *, certain: Callable[[], int]) -> None:
        """`certain`: everything of the log below it stays."""
        self._names = names
        self._index = index
        self._certain = certain
        self._new: list[tuple[int, int]] = []
        """(first id, end) of those found since the last step."""
        self._ended: deque[tuple[int, int, int]] = deque()
        """(first id, end, log position behind the deletions)."""
        self._at = 0
        """Ids from here on have not been looked at since the start."""
        self._start_end = names.next_id // PAGE * PAGE
        """Where those end that were given out before the start."""
        names.on_dropped = self._dropped

    def step(self) -> None:
        """Give some rows back."""
        for _ in range(RANGES_PER_STEP):
            if self._at < self._start_end:
                self._take_next()
        behind, certain = self._index.end_position, self._certain()
        self._ended.extend((first, end, behind) for first, end in self._new)
        self._new.clear()
        for _ in range(min(len(self._ended), RANGES_PER_STEP)):
            first, end, position = self._ended.popleft()
            if len(self._names.ids(first, end)):
                continue  # the newest page, which was empty for a while
            if position > certain or end > self._names.next_id or not self._index.forget_rows(first, end):
                self._ended.append((first, end, position))

    def _dropped(self, page: int) -> None:
        self._new.append((page * PAGE, (page + 1) * PAGE))

    def _take_next(self) -> None:
        """Note the next stretch without queues of those given out before the start, or pass over a page with some."""
        first = self._at
        following = next(self._names.parts(PAGE, first), self._start_end)
        self._at = min(max(following, first + PAGE), first + RANGE_IDS_MAX, self._start_end)
        if following > first:
            self._new.append((first, self._at))
