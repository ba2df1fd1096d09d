"""Group commit: makes the log durable again and again while there is something new.

Synchronous: fdatasync back to back; what gathered during one flush is the next group, no timer. Asynchronous: one flush
per interval. A thread does it, so that the loop works on while the disk does; but handing over and reporting back costs
several times what a short fdatasync itself costs. So a little that waits while the thread has nothing to do is flushed
by the loop itself at the end of its turn, as long as that has proved quick: one slow flush sends the next ones to the
thread, twice as many after each further slow one.

Invariant: `on_flushed(position)` is only ever called with a position whose bytes are on the disk; after the first
failed flush nothing is flushed any more and `on_failed` is called once, because a second fsync may succeed with the
data gone. Thread rule: `request`, `close` from the loop thread; both callbacks run on the loop thread, those of the
thread's flushes through `schedule`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[Callable[[], None]], None]

INLINE_BYTES_MAX = 8 * 1024
"""More than this is the thread's: writing it takes the disk long enough for the loop to do something else meanwhile."""
INLINE_NS_MAX = 3_000_000
"""A flush on the loop that took longer was slow: the loop serves nothing meanwhile."""
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


class Flusher:
    """Runs `sync` in its own thread; `interval_ms` 0 means back to back."""

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
    ) -> None:
        self._sync = sync
        self._inline = inline if not interval_ms else None
        self._asked = False
        self._handed_over = False
        self._pause = 0
        self._pause_next = SLOW_PAUSE_MIN
        self._interval_s = interval_ms / 1000
        self._schedule = schedule
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._position = self._reported = position
        self._report_pending = False
        self._error: OSError | None = None
        self._failed = False
        self.flushes_total = 0
        self._thread = threading.Thread(target=self._run, name="log-flusher", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Ask for a flush of what has been written so far; cheap when one is already asked for."""
        if self._inline is None or self._handed_over:
            if not self._wanted.is_set():
                self._wanted.set()
        elif not self._asked:
            self._asked = True
            self._inline.soon(self._decide)

    def _decide(self) -> None:
        """At the end of the turn: flush here, or let the thread do it."""
        self._asked = False
        inline = self._inline
        assert inline is not None
        if self._closing.is_set() or self._failed:
            return
        if self._pause or inline.backlog() > INLINE_BYTES_MAX or inline.busy():
            self._pause = max(0, self._pause - 1)
            self._handed_over = True
            self._wanted.set()
            return
        started_ns = inline.monotonic_ns()
        try:
            self._position = self._sync()
        except OSError as error:
            self._error = error
        else:
            self.flushes_total += 1
            if inline.monotonic_ns() - started_ns > INLINE_NS_MAX:
                self._pause, self._pause_next = self._pause_next, min(2 * self._pause_next, SLOW_PAUSE_MAX)
            elif self._pause_next > SLOW_PAUSE_MIN:
                self._pause_next -= 1
        self._report()

    def close(self) -> None:
        """Flush once more, end the thread, and deliver the last report before returning."""
        self._closing.set()
        self._wanted.set()
        self._thread.join()
        self._report()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            closing = self._closing.is_set()
            if self._interval_s and not closing:
                self._closing.wait(self._interval_s)
            self._wanted.clear()
            try:
                self._position = self._sync()
            except OSError as error:
                self._error = error
                self._schedule(self._report)
                return
            self.flushes_total += 1
            if closing:
                return
            if self._closing.is_set():
                self._wanted.set()
            if not self._report_pending:
                self._report_pending = True
                self._schedule(self._report)

    def _report(self) -> None:
        self._report_pending = self._handed_over = False
        position = self._position
        if position > self._reported:
            self._reported = position
            self._on_flushed(position)
        if self._error is not None:
            error, self._error = self._error, None
            self._failed = True
            self._on_failed(error)
