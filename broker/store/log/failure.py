"""Why a store takes no more appends: the first failure, and its report.

A full disk refuses and passes; a failed write or flush is for good, because after a failed fdatasync the kernel may
have dropped the pages. Invariant: the first failure is the one that is reported; from then on nothing is
appended, and every callback that waits for a position gets it. Thread rule: loop thread.
"""

from __future__ import annotations

from typing import Any

from broker.store.errors import StoreError, StoreFailed
from broker.store.log.confirm import Confirm
from broker.store.log.disk_guard import FULL, DiskGuard


class Failure:
    """The failed state of one open store; `error` is None while it works."""

    def __init__(self, guard: DiskGuard, confirm: Confirm, events: Any) -> None:
        self._guard = guard
        self._confirm = confirm
        self._events = events
        self.error: StoreError | None = None

    @property
    def refusal(self) -> StoreError | None:
        """What an append gets now instead of being taken: the failure, or StoreFull; None while it is taken."""
        return self.error or (self._guard.refusal() if self._guard.full else None)

    def check(self, *, essential: bool = False) -> None:
        """Raise what an append gets now, if anything; on a full disk an `essential` one is taken, it makes room."""
        if self.error is not None:
            raise self.error
        if self._guard.full and not essential:
            raise self._guard.refusal()

    def write_failed(self, error: OSError) -> StoreError:
        """Take in a failed write and return what the caller gets: StoreFull, or StoreFailed for good."""
        if error.errno in FULL:
            self._guard.run_full()
            return self._guard.refusal()
        return self.fail(StoreFailed(f"writing to the log failed: {error}; restart the broker once the disk is well"))

    def flush_failed(self, error: OSError) -> None:
        """Take in a failed fdatasync: a second one might succeed although the data is lost."""
        self.fail(
            StoreFailed(f"fdatasync of the log failed: {error}; nothing more is acknowledged, restart the broker")
        )

    def background_failed(self, error: Exception) -> None:
        """Take in the failure of a job of the index thread; what it derives from the log can be made again."""
        if isinstance(error, OSError) and error.errno in FULL:
            self.write_failed(error)
        elif isinstance(error, OSError):
            self.flush_failed(error)
        else:
            self._events.error("index_job_failed", error=repr(error))

    def fail(self, failure: StoreError) -> StoreError:
        """Stop for good and return `failure`."""
        if self.error is None:
            self.error = failure
            self._events.error("store_failed", error=str(failure))
            self._confirm.fail(failure)
        return failure

    def end(self, reason: StoreError) -> None:
        """Stop without a failure: who still waits gets `reason`, or the failure there was before."""
        self.error = self.error or reason
        self._confirm.fail(self.error)
