"""The confirm position: nobody sees, and nobody is promised, anything at or above it.

It moves only to the end of a whole append (a group), so that an atomic group is confirmed as one. Invariant: it never
moves back; callbacks run in order of their positions; after `fail` every waiting and every later callback for an
unconfirmed position gets the error. Thread rule: loop thread only.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from broker.store import hot
from broker.store.hot.contracts import Encoded, EntryBlock

Callback = Callable[[Exception | None], None]
Listener = Callable[[Sequence[int]], None]
FreshListener = Callable[[Sequence[Encoded]], None]


class Confirm:
    """Groups waiting for the disk, who waits for them, and each queue's confirmed end."""

    def __init__(self, position: int, log: Any) -> None:
        self.position = position
        self.queue_ends = array("q")
        """Confirmed end (exclusive) per queue id."""
        self._log = log
        self._stamps = array("I")
        self._stamp = 0
        self._groups: deque[tuple[int, EntryBlock, Encoded | None]] = deque()
        self._waiting: list[tuple[int, int, Callback]] = []
        self._sequence = 0
        self._listeners: list[Listener] = []
        self._fresh_listeners: list[FreshListener] = []
        self._error: Exception | None = None

    def grow(self, queue_count: int) -> None:
        """Make room for queue ids below `queue_count`."""
        missing = queue_count - len(self.queue_ends)
        if missing > 0:
            zeros = [0] * (missing + len(self.queue_ends) // 2)
            self.queue_ends.extend(zeros)
            self._stamps.extend(zeros)

    def add_group(self, end: int, entries: EntryBlock, fresh: Encoded | None = None) -> None:
        """Note an append that ends at `end` and gave out the offsets of these entries.

        `fresh` is kept until then and handed to those who asked for what was confirmed.
        """
        assert end > self.position, (end, self.position)
        self._groups.append((end, entries, fresh))

    def when_confirmed(self, position: int, callback: Callback) -> None:
        """Call back once everything below `position` is confirmed; at once when it is already."""
        if position <= self.position:
            callback(None)
        elif self._error is not None:
            callback(self._error)
        else:
            self._sequence += 1
            heapq.heappush(self._waiting, (position, self._sequence, callback))

    def on_advance(self, listener: Listener) -> None:
        """Tell `listener` the queue ids whose confirmed end moved, once per move."""
        self._listeners.append(listener)

    def on_fresh(self, listener: FreshListener) -> None:
        """Give `listener` the small batches that were confirmed, just before `on_advance` tells of the same move."""
        self._fresh_listeners.append(listener)

    def advance(self, durable: int) -> None:
        """Move to the last group end at or below `durable` and tell everybody who waits for it."""
        groups = self._groups
        blocks, fresh = [], []
        position = self.position
        while groups and groups[0][0] <= durable:
            position, entries, batch = groups.popleft()
            blocks.append(entries)
            if batch is not None:
                fresh.append(batch)
        if position == self.position:
            return
        self._stamp = (self._stamp + 1) & 0xFFFF_FFFF or 1
        moved = hot.core.confirm(blocks, self.queue_ends, self._stamps, self._stamp)
        self.position = position
        waiting = self._waiting
        while waiting and waiting[0][0] <= position:
            self._call(heapq.heappop(waiting)[2], None)
        if fresh:
            for fresh_listener in self._fresh_listeners:
                self._tell(fresh_listener, fresh)
        if moved:
            for listener in self._listeners:
                self._tell(listener, moved)

    def fail(self, error: Exception) -> None:
        """The store has failed: nothing above the confirm position will ever be confirmed."""
        self._error = error
        waiting, self._waiting = sorted(self._waiting), []
        for _, _, callback in waiting:
            self._call(callback, error)

    def _tell(self, listener: Callable[[Any], None], news: Sequence[Any]) -> None:
        try:
            listener(news)
        except Exception as error:  # noqa: BLE001 - one listener must not stop the confirm position
            self._log.error("confirm_listener_failed", error=repr(error), exc_info=True)

    def _call(self, callback: Callback, error: Exception | None) -> None:
        try:
            callback(error)
        except Exception as failure:  # noqa: BLE001 - one handler's bug must not leave the others unanswered
            self._log.error("confirm_callback_failed", error=repr(failure), exc_info=True)
