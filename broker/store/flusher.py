"""Group commit: a thread that makes the log durable again and again while there is something new.

Synchronous: fdatasync back to back; what gathered during one flush is the next group, no timer. Asynchronous: one flush
per interval. Invariant: `on_flushed(position)` is only ever called with a position whose bytes are on the disk; after
the first failed flush the thread ends and `on_failed` is called once, because a second fsync may succeed with the data
gone. Thread rule: `request`, `close` from the loop thread; both callbacks run on the loop thread through `schedule`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

Schedule = Callable[[Callable[[], None]], None]


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
    ) -> None:
        self._sync = sync
        self._interval_s = interval_ms / 1000
        self._schedule = schedule
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._position = self._reported = position
        self._report_pending = False
        self._error: OSError | None = None
        self.flushes_total = 0
        self._thread = threading.Thread(target=self._run, name="log-flusher", daemon=True)
        self._thread.start()

    def request(self) -> None:
        """Ask for a flush of what has been written so far; cheap when one is already asked for."""
        if not self._wanted.is_set():
            self._wanted.set()

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
        self._report_pending = False
        position = self._position
        if position > self._reported:
            self._reported = position
            self._on_flushed(position)
        if self._error is not None:
            error, self._error = self._error, None
            self._on_failed(error)
