"""From written to confirmed: group commit, and the position below which the log is durable and visible.

Flushing, synchronous: fdatasync back to back; what gathered during one flush is the next group, without a timer.
Asynchronous: one flush per interval. A thread does it, so that the loop works on while the disk does; but handing over
and reporting back costs several times as much as a short fdatasync. So a small amount of data that waits while the
thread is idle is flushed by the loop itself at the end of its turn, as long as that has proved quick: one slow flush
sends the next ones to the thread, twice as many after each further slow one.

The confirm position moves only to the end of a whole append (a group), so that an atomic group is confirmed as one;
nothing at or above it is visible or acknowledged.

Invariant: `on_flushed(position)` is only called with a position whose bytes are on the disk; after the first failed
flush nothing is flushed any more and `on_failed` is called once, because a second fsync may succeed although the data
is lost. The confirm position never moves back; callbacks run in order of their positions; after `fail` every waiting
and every later callback for an unconfirmed position gets the error.
Thread rule: loop thread; the flusher's thread reports through `schedule`.
"""

from __future__ import annotations

from bisect import insort_right
from collections import deque
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

from broker.store.log.flush_thread import Flush, FlushThread
from remoting.native.contracts import Encoded, Ring
from runtime.clock import SystemClock

Schedule = Callable[[Callable[[], None]], None]

INLINE_BYTES_MAX = 8 * 1024
"""More than this is the thread's: writing it takes the disk long enough for the loop to do something else meanwhile."""
INLINE_NS_MAX = 3_000_000
"""A flush on the loop that took longer was slow: the loop serves nothing meanwhile."""
TIMES_MAX = 1_024
"""Times of flushes that are kept for one who reads them; the oldest are forgotten where nobody does."""
SLOW_PAUSE_MIN, SLOW_PAUSE_MAX = 16, 4_096
"""Flushes the thread does after a slow one, before the loop tries again."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Inline:
    """What flushing on the loop needs; without it every flush is the thread's."""

    soon: Schedule
    """Runs a function at the end of the loop's turn."""
    backlog: Callable[[], int]
    """Bytes written and not flushed."""
    busy: Callable[[], bool]
    """Whether something else keeps the disk busy."""
    monotonic_ns: Callable[[], int]


class SlowFlushes:
    """How long the loop leaves flushes to the thread, after slow ones of its own."""

    __slots__ = ("_next", "_pause")

    def __init__(self) -> None:
        self._pause = 0
        self._next = SLOW_PAUSE_MIN

    def waits(self) -> bool:
        """Whether the thread does the next flush; counts it."""
        if self._pause:
            self._pause -= 1
            return True
        return False

    def took(self, elapsed_ns: int) -> None:
        """A flush on the loop has taken so long."""
        if elapsed_ns > INLINE_NS_MAX:
            self._pause, self._next = self._next, min(2 * self._next, SLOW_PAUSE_MAX)
        elif self._next > SLOW_PAUSE_MIN:
            self._next -= 1


class FlushOutcome:
    """What flushes have reached, and who is informed of it."""

    __slots__ = ("_on_failed", "_on_flushed", "_reported", "error", "monotonic_ns", "times")

    def __init__(
        self,
        on_flushed: Callable[[int], None],
        on_failed: Callable[[OSError], None],
        position: int,
        monotonic_ns: Callable[[], int],
    ) -> None:
        self.monotonic_ns = monotonic_ns
        self.times: deque[int] = deque(maxlen=TIMES_MAX)
        """Nanoseconds that flushes took, for who reads them on the loop; appended to by either thread."""
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._reported = position
        self.error: OSError | None = None
        """Of the flush that failed, until it is reported; set by either thread."""

    def flushed(self, position: int) -> None:
        """Report the position, unless it is the last one reported."""
        if position > self._reported:
            self._reported = position
            self._on_flushed(position)

    def failed(self) -> None:
        """Report the error."""
        error, self.error = self.error, None
        assert error is not None
        self._on_failed(error)


class Flusher:
    """Runs `sync` in a thread; `interval_ms` 0 means back to back."""

    def __init__(
        self,
        sync: Callable[[], int],
        *,
        interval_ms: int,
        schedule: Schedule,
        on_flushed: Callable[[int], None],
        on_failed: Callable[[OSError], None],
        position: int,
        inline: Inline | None = None,
        monotonic_ns: Callable[[], int] = SystemClock.monotonic_ns,
        thread: Callable[[Flush, float], FlushThread] = FlushThread,
    ) -> None:
        self._sync = sync
        self._inline = inline if not interval_ms else None
        self._asked = False
        self._handed_over = False
        self._slow = SlowFlushes()
        self._schedule = schedule
        self._outcome = FlushOutcome(on_flushed, on_failed, position, monotonic_ns)
        self._requested = False
        """Whether the thread has been asked for a flush that it has not begun."""
        self._position = position
        self._report_pending = False
        self._ended = False
        """Nothing is flushed on the loop any more: a flush has failed, or the flusher is closed."""
        self.flushes_total = 0
        self._thread = thread(self._flush, interval_ms / 1000)

    @property
    def times(self) -> deque[int]:
        """Nanoseconds that flushes took, the oldest first; the reader on the loop takes them out."""
        return self._outcome.times

    def request(self) -> None:
        """Ask for a flush of what has been written so far; cheap when one is already asked for."""
        if self._inline is None or self._handed_over:
            self._want()
        elif not self._asked:
            self._asked = True
            self._inline.soon(self._decide)

    def _want(self) -> None:
        if not self._requested:
            self._requested = True
            self._thread.want()

    def _decide(self) -> None:
        """At the end of the turn: flush here, or let the thread do it."""
        self._asked = False
        inline = self._inline
        assert inline is not None
        if self._ended:
            return
        if self._slow.waits() or inline.backlog() > INLINE_BYTES_MAX or inline.busy():
            self._handed_over = True
            self._want()
            return
        started_ns = inline.monotonic_ns()
        try:
            self._position = self._sync()
        except OSError as error:
            self._outcome.error = error
        else:
            self.flushes_total += 1
            elapsed_ns = inline.monotonic_ns() - started_ns
            self._outcome.times.append(elapsed_ns)
            self._slow.took(elapsed_ns)
        self._report()

    def close(self) -> None:
        """Flush once more, end the thread, and deliver the last report before returning."""
        self._ended = True
        self._thread.close()
        self._report()

    def _flush(self) -> bool:
        """Flush, in the thread; whether that went well."""
        self._requested = False  # before the flush: what is written from here on asks for the next one
        started_ns = self._outcome.monotonic_ns()
        try:
            self._position = self._sync()
        except OSError as error:
            self._outcome.error = error
        else:
            self.flushes_total += 1
            self._outcome.times.append(self._outcome.monotonic_ns() - started_ns)
        is_well = self._outcome.error is None
        if not self._ended and not (is_well and self._report_pending):
            self._report_pending = is_well
            self._schedule(self._report)
        return is_well

    def _report(self) -> None:
        self._report_pending = self._handed_over = False
        outcome = self._outcome
        outcome.flushed(self._position)
        if outcome.error is not None:
            self._ended = True
            outcome.failed()


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
        """By position, then in order of the calls."""
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
        """Call `listener` once per move with the queue ids whose confirmed end moved; with `among` if not empty."""
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
                self._call(fresh_listener, fresh)
        if moved:
            for listener, among in self._listeners:
                if among is None or among:
                    self._call(listener, moved)

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

    def _call(self, listener: Callable[[Any], None], moved: Sequence[Any]) -> None:
        try:
            listener(moved)
        except Exception as error:  # noqa: BLE001 - one listener must not stop the confirm position
            self._log.error("confirm_listener_failed", error=repr(error), exc_info=True)

    def _failed(self, failure: Exception) -> None:
        self._log.error("confirm_callback_failed", error=repr(failure), exc_info=failure)
