"""A streaming query of the demo that is started again from its checkpoint when Spark ends it for a passing reason.

Invariant: `failed` is set when and only when the query was given up; until then `drain` waits for the query that goes
on in its place. Thread rule: one thread per query runs `run_forever`; everything else from the main thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lightmq.spark_session.restarts import cause_of, run_forever

POLL_S = 0.2
RESTARTS_MAX = 5
"""Restarts within ten minutes: half a minute of pauses, so that a broker that is not there ends the demo soon."""
FIRST_BATCH_TIMEOUT_S = 600.0
"""Longest wait for a first batch, restarts included; after it the next query is started all the same."""


class KeptQuery:
    """One query by its name; `start` makes the whole of it and returns the running query."""

    def __init__(
        self, name: str, start: Callable[[], Any], say: Callable[..., object], *, restarts_max: int = RESTARTS_MAX
    ) -> None:
        self.name = name
        self._restarts_max = restarts_max
        self.failed: str | None = None
        self._start = start
        self._say = say
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._query: Any = None
        self._thread = threading.Thread(target=self._run, name=f"query-{name}", daemon=True)

    def begin(self) -> None:
        """Start it in a thread of its own."""
        self._thread.start()

    def _run(self) -> None:
        try:
            run_forever(
                self._started, restarts_max=self._restarts_max, stop=self._stop,
                say=lambda text: self._say(event="restarted", query=self.name, text=text),
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - whatever it is, the demo tells it in one sentence and accounts
            self.failed = cause_of(error)
            self._say(event="failed", query=self.name, error=self.failed)
        finally:
            self._ended.set()

    def _started(self) -> Any:
        self._query = self._start()
        return self._query

    def progress(self) -> list[Any]:
        """What Spark tells about its newest batches; nothing before the first one."""
        return [] if self._query is None else list(self._query.recentProgress)

    def await_first_batch(self, timeout_s: float = FIRST_BATCH_TIMEOUT_S) -> bool:
        """Wait until a batch was made; False when it was given up, ended or did not come in time."""
        deadline = time.monotonic() + timeout_s
        while not self.progress():
            if self._ended.wait(POLL_S) or time.monotonic() > deadline:
                return bool(self.progress())
        return True

    def drain(self) -> None:
        """Wait until everything stored so far is processed, by the query or by those that go on in its place.

        A query that was never begun has nothing to wait for.
        """
        if self._thread.ident is None:
            return
        while not self._ended.is_set():
            query = self._query
            try:
                if query is not None:
                    query.processAllAvailable()
                    return
            except Exception:  # noqa: BLE001 - it failed meanwhile: run_forever starts it again or gives it up
                while self._query is query and not self._ended.wait(POLL_S):
                    pass
            self._ended.wait(POLL_S)

    def stop(self) -> None:
        """End it and wait for its end."""
        self._stop.set()
        query = self._query
        if query is not None:
            with suppress(Exception):  # its session may be gone
                query.stop()
        if self._thread.is_alive():
            self._thread.join()
