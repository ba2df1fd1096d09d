"""The thread that flushes a log: back to back, or once in an interval, as long as there is something to flush.

Invariant: after `close` one more flush has begun and ended, unless one has failed; after a failed one there is none.
Thread rule: `want` and `close` on the loop thread; `flush` runs in the thread alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

Flush = Callable[[], bool]
"""Makes durable what has been written; False: it has failed, and is not called again."""


class FlushThread:
    """Calls `flush` in its own thread."""

    def __init__(self, flush: Flush, interval_s: float) -> None:
        """`interval_s` 0 means back to back."""
        self._flush = flush
        self._interval_s = interval_s
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-flusher", daemon=True)
        self._thread.start()

    def want(self) -> None:
        """Ask for a flush of what has been written so far."""
        self._wanted.set()

    def close(self) -> None:
        """Flush once more and end the thread."""
        self._closing.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            closing = self._closing.is_set()
            if self._interval_s and not closing:
                self._closing.wait(self._interval_s)
            self._wanted.clear()
            if not self._flush() or closing:
                return
            if self._closing.is_set():
                self._wanted.set()
