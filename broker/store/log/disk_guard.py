"""Stops appends before the disk is full, and keeps a ballast so that the broker can still write its own metadata.

    BALLAST  reserved space, deleted when the floor is reached, made again once there is room; small for a small log

Invariant: `full` is set while free space is below the floor and cleared only above the floor plus the ballast, after a
write that found no room only when a whole log file fits besides; so it does not flutter. Each change is an event.
Thread rule: loop thread; one statvfs and, rarely, one fallocate per call.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.store.errors import StoreFull
from broker.store.log.segment import allocate
from runtime.faults import FaultPoints

NAME = "BALLAST"
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
        """`log_bytes` says what the log files take now; without it the ballast has its full size from the start."""
        self._directory = directory
        self._floor = floor
        self._ballast = ballast
        self._path = directory / NAME
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
        """Look at the disk and set `full`."""
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
            "free space, shorten the retention or lower free_space_bytes_min. Reads go on"
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
