"""The one background thread for slow work: sorting and writing runs, merges, snapshots, preparing segments.

Invariant: jobs run one after the other; each job's result (or error) is handed to its `done` on the loop thread, in
order. Thread rule: `submit`, `drain`, `close` from the loop thread; jobs touch only what they were given.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from broker.store.log.flusher import Schedule

Job = Callable[[], Any]
Done = Callable[[Any, Exception | None], None]


class IndexThread:
    """Runs jobs in order and reports on the loop thread."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._jobs: queue.SimpleQueue[tuple[Job, Done] | None] = queue.SimpleQueue()
        self._results: deque[tuple[Done, Any, Exception | None]] = deque()
        self._finished = threading.Condition()
        self.pending = 0
        self._thread = threading.Thread(target=self._run, name="index-thread", daemon=True)
        self._thread.start()

    def submit(self, job: Job, done: Done) -> None:
        """Run `job` in the thread, then `done(result, error)` on the loop thread."""
        self.pending += 1
        self._jobs.put((job, done))

    def drain(self) -> None:
        """Wait for all jobs and deliver their results now; jobs started by results included."""
        while self.pending:
            with self._finished:
                while not self._results:
                    self._finished.wait()
            self._deliver()

    def close(self) -> None:
        """Finish the jobs there are, deliver their results, end the thread."""
        self.drain()
        self._jobs.put(None)
        self._thread.join()

    def _deliver(self) -> None:
        while self._results:
            done, result, error = self._results.popleft()
            self.pending -= 1
            done(result, error)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            result, error = None, None
            try:
                result = job()
            except Exception as failure:  # noqa: BLE001 - the owner decides what a failed job means
                error = failure
            with self._finished:
                self._results.append((done, result, error))
                self._finished.notify()
            self._schedule(self._deliver)
