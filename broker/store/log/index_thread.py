"""The one background thread for slow work: sorting and writing runs, merges, snapshots, preparing segments.

Invariant: jobs run one after the other; each job's result (or error) is handed to its `done` on the loop thread, in
order. Thread rule: `submit`, `drain`, `close`, `abandon` from the loop thread; jobs touch only what they were given.
`Workers` says who does the slow work of a store: by default one thread for flushes, and this one.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broker.store.log.confirm import Schedule
from broker.store.log.failure import FULL
from broker.store.log.flush_thread import Flush, FlushThread

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

    def abandon(self) -> None:
        """Drop the jobs that wait, finish the one under way, end the thread; nobody is told any result."""
        self._schedule = lambda _function: None
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.get_nowait()
        self._jobs.put(None)
        self._thread.join()  # whoever opens the directory next must not meet a job of this opening

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


@dataclass(frozen=True, slots=True)
class Workers:
    """Who does a store's slow work beside the loop."""

    flush: Callable[[Flush, float], FlushThread] = FlushThread
    """Made of what flushes the log, and the seconds between two flushes."""
    jobs: Callable[[Schedule], IndexThread] = IndexThread


THREADS = Workers()
"""A thread each."""

RUNS = "runs"
"""Kind of the jobs that write, merge and drop the runs of an index."""


class Jobs:
    """Kinds of work of which each runs at most once at a time; `failed` gets their errors."""

    def __init__(self, thread: IndexThread, failed: Callable[[Exception], None]) -> None:
        self._thread = thread
        self._failed = failed
        self._running: set[str] = set()

    def running(self, kind: str) -> bool:
        """Whether a job of this kind is not done yet."""
        return kind in self._running

    def start(self, kind: str, job: Job, then: Callable[[Any], None] | None = None, *, preparing: bool = False) -> None:
        """Run `job` in the index thread, and `then` with its result, unless one of its kind is still at it.

        With `preparing` a full disk is ignored: there may be room when the result is needed, else that append fails.
        """
        if kind in self._running:
            return
        self._running.add(kind)

        def done(result: Any, error: Exception | None) -> None:
            self._running.discard(kind)
            full = isinstance(error, OSError) and error.errno in FULL
            if error is not None and not (full and preparing):
                self._failed(error)
            elif error is None and then is not None:
                then(result)

        self._thread.submit(job, done)
