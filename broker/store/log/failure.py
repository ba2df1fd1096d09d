"""Why a store accepts no more appends: too little free space, or the first failure.

    BALLAST  reserved space, deleted when the floor is reached, made again once there is room; small for a small log

A full disk refuses appends for a while; a failed write or flush is permanent, because after a failed fdatasync the
kernel may have dropped the pages. Invariant: `DiskGuard.full` is set while free space is below the floor and cleared
only above the floor plus the ballast, after a write that found no room only when a whole log file fits as well, so
that it does not flap; each change is an event. The first failure is the one that is reported; from then on nothing is
appended, and every callback that waits for a position gets it. Thread rule: loop thread; a check costs one statvfs
and, rarely, one fallocate.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.store.errors import StoreError, StoreFailed, StoreFull
from broker.store.log.commit_log import allocate
from broker.store.log.confirm import Confirm
from runtime.faults import FaultPoints

BALLAST_NAME = "BALLAST"
MIB = 1024 * 1024
SMALL_LOG_BALLASTS, SMALL_BALLAST_SHARE = 4, 16
"""While the log files take less than so many ballasts, their metadata is small, and so is the ballast: one part of so
many. In two steps only, because each is a flush on the loop."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of the operating system that mean: no room."""


class DiskGuard:
    """Watches the free space of the data directory."""

    def __init__(
        self,
        directory: Path,
        floor: int,
        ballast: int,
        file_size: int,
        faults: FaultPoints,
        events: Any,
        log_bytes: Callable[[], int] | None = None,
    ) -> None:
        """`log_bytes` returns the present size of the log files; without it the ballast starts at its full size."""
        self._directory = directory
        self._floor = floor
        self._ballast = ballast
        self._path = directory / BALLAST_NAME
        self._file_size = file_size
        self._faults = faults
        self._events = events
        self._log_bytes = log_bytes
        self._ballast_there = self._path.stat().st_size if self._path.exists() else 0
        self._resume_at = 0
        self.full = False
        self.free_bytes = 0
        self.check()

    def check(self) -> None:
        """Check the free space and set `full`."""
        self.free_bytes = self._free()
        if self.free_bytes < self._floor:
            self._set_full()
        elif self.free_bytes >= max(self._resume_at, self._floor + self._ballast):
            if self.full:
                self._events.info("disk_has_room", free_mib=self.free_bytes // MIB)
            self.full = False
            self._resume_at = 0
            self._restore_ballast()

    def run_full(self) -> None:
        """A write found no room: refuse appends until a log file fits."""
        self.free_bytes = self._free()
        self._resume_at = self._ballast + self._file_size
        self._set_full()

    def _set_full(self) -> None:
        """Refuse appends from now on and give the ballast back to the file system."""
        self._path.unlink(missing_ok=True)
        self._ballast_there = 0
        if not self.full:
            self.full = True
            self._events.error("disk_full", error=str(self.refusal()))

    def refusal(self) -> StoreFull:
        """Return the error an append gets while the disk is full."""
        lack = f"floor {self._floor // MIB} MiB" if self.free_bytes < self._floor else "too little for the next file"
        return StoreFull(
            f"disk full: {self._directory} has {self.free_bytes // MIB} MiB free, {lack}: "
            "free space, shorten the retention or lower free_space_bytes_min. Reads continue"
        )

    def _free(self) -> int:
        try:
            self._faults.hit("disk.free")
        except OSError:
            return 0
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize

    def _restore_ballast(self) -> None:
        small = self._log_bytes is not None and self._log_bytes() < SMALL_LOG_BALLASTS * self._ballast
        wanted = self._ballast // SMALL_BALLAST_SHARE if small else self._ballast
        if self._ballast_there < wanted:
            self._ballast_there = 0
            with contextlib.suppress(OSError):  # no room for it yet is no reason to stop
                allocate(self._path, wanted, zeroed=False)
                self._ballast_there = wanted


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
        """Take in a failed write and return what the caller gets: StoreFull, or StoreFailed, which is permanent."""
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
        """Stop permanently and return `failure`."""
        if self.error is None:
            self.error = failure
            self._events.error("store_failed", error=str(failure))
            self._confirm.fail(failure)
        return failure

    def end(self, reason: StoreError) -> None:
        """Stop without a failure: pending callbacks get `reason`, or an earlier failure."""
        self.error = self.error or reason
        self._confirm.fail(self.error)
