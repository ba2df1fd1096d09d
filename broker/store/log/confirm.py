"""The confirm position: nothing at or above it is visible or acknowledged.

It moves only to the end of a whole append (a group), so that an atomic group is confirmed as one. Invariant: it never
moves back; callbacks run in order of their positions; after `fail` every waiting and every later callback for an
unconfirmed position gets the error. Thread rule: loop thread only.
"""

from __future__ import annotations

from bisect import insort_right
from collections import deque
from collections.abc import Callable, Sequence, Sized
from operator import itemgetter
from typing import Any, Protocol

from remoting.native.contracts import Encoded, Ring

Callback = Callable[[Exception | None], None]
Listener = Callable[[Sequence[int]], None]
FreshListener = Callable[[Sequence[Encoded]], None]

NEVER = 2**62
"""A position that is never reached: its callback gets the store's failure only, at no cost for the others."""


class RingHolder(Protocol):
    """What keeps the rows of the queues; its ring is another one after it has grown."""

    ring: Ring


class Confirm:
    """Groups waiting for the disk, and their callbacks; each queue's confirmed end is in its row of the tail."""

    def __init__(self, position: int, tail: RingHolder, log: Any) -> None:
        self.position = position
        self._tail = tail
        self._log = log
        self._groups: deque[Encoded] = deque()
        self._waiting: deque[tuple[int, Callback]] = deque()
        """By position; who asked later stands behind."""
        self._until_failure: list[Callback] = []
        self._listeners: list[tuple[Listener, Sized | None]] = []
        self._fresh_listeners: list[FreshListener] = []
        self._error: Exception | None = None

    def add_group(self, batch: Encoded) -> None:
        """Note an append whose offsets were given out; it is kept until it is confirmed."""
        self._groups.append(batch)

    def when_confirmed(self, position: int, callback: Callback) -> None:
        """Call back once everything below `position` is confirmed; at once when it is already."""
        if position <= self.position:
            callback(None)
        elif self._error is not None:
            callback(self._error)
        elif position >= NEVER:
            self._until_failure.append(callback)
        elif self._waiting and self._waiting[-1][0] > position:
            insort_right(self._waiting, (position, callback), key=itemgetter(0))
        else:
            self._waiting.append((position, callback))

    def on_advance(self, listener: Listener, among: Sized | None = None) -> None:
        """Tell `listener` the queue ids whose confirmed end moved, once per move; with `among` while it has members."""
        self._listeners.append((listener, among))

    def on_fresh(self, listener: FreshListener) -> None:
        """Give `listener` the small batches that were confirmed, just before `on_advance` reports the same move."""
        self._fresh_listeners.append(listener)

    def advance(self, durable: int) -> None:
        """Move to the last group end at or below `durable` and call the callbacks that wait for it."""
        groups = self._groups
        batches = []
        while groups and groups[0].end_position <= durable:
            batches.append(groups.popleft())
        if not batches:
            return
        position = batches[-1].end_position
        assert position > self.position, (position, self.position)
        moved = self._tail.ring.confirm([batch.entries for batch in batches])
        self.position = position
        waiting = self._waiting
        while waiting and waiting[0][0] <= position:
            callback = waiting.popleft()[1]
            try:
                callback(None)
            except Exception as failure:  # noqa: BLE001 - one handler's bug must not leave the others unanswered
                self._failed(failure)
        if self._fresh_listeners:
            fresh = [batch for batch in batches if batch.pieces and len(batch.entries)]
            for fresh_listener in self._fresh_listeners if fresh else ():
                self._tell(fresh_listener, fresh)
        if moved:
            for listener, among in self._listeners:
                if among is None or among:
                    self._tell(listener, moved)

    def fail(self, error: Exception) -> None:
        """The store has failed: nothing above the confirm position will ever be confirmed."""
        self._error = error
        waiting, self._waiting = self._waiting, deque()
        until_failure, self._until_failure = self._until_failure, []
        for callback in [*(callback for _, callback in waiting), *until_failure]:
            try:
                callback(error)
            except Exception as failure:  # noqa: BLE001 - as above
                self._failed(failure)

    def _tell(self, listener: Callable[[Any], None], news: Sequence[Any]) -> None:
        try:
            listener(news)
        except Exception as error:  # noqa: BLE001 - one listener must not stop the confirm position
            self._log.error("confirm_listener_failed", error=repr(error), exc_info=True)

    def _failed(self, failure: Exception) -> None:
        self._log.error("confirm_callback_failed", error=repr(failure), exc_info=failure)
