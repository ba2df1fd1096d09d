"""Stops appends before the disk is full, and keeps a ballast so that the broker can still write its own metadata.

    BALLAST  reserved space, deleted when the floor is reached, made again once there is room

Invariant: `full` is set while free space is below the floor and cleared only above the floor plus the ballast, so that
it does not flutter. Thread rule: loop thread; one statvfs and, rarely, one fallocate per call.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from broker.store.errors import StoreFull
from broker.store.segment import allocate
from runtime.faults import FaultPoints

NAME = "BALLAST"
MIB = 1024 * 1024


class DiskGuard:
    """Watches the free space of the data directory."""

    def __init__(self, directory: Path, floor: int, ballast: int, faults: FaultPoints) -> None:
        self._directory = directory
        self._floor = floor
        self._ballast = ballast
        self._path = directory / NAME
        self._faults = faults
        self.full = False
        self.free_bytes = 0
        self.check()

    def check(self) -> None:
        """Look at the disk and set `full`."""
        self.free_bytes = self._free()
        if self.free_bytes < self._floor:
            self.run_full()
        elif self.free_bytes >= self._floor + self._ballast:
            self.full = False
            self._restore_ballast()

    def run_full(self) -> None:
        """Refuse appends from now on and give the ballast back to the file system."""
        self.full = True
        self._path.unlink(missing_ok=True)

    def refusal(self) -> StoreFull:
        """Return the error an append gets while the disk is full."""
        return StoreFull(
            f"disk full: {self._directory} has {self.free_bytes // MIB} MiB free, floor {self._floor // MIB} MiB: "
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
        if self._ballast and not self._path.exists():
            with contextlib.suppress(OSError):  # no room for it yet is no reason to stop
                allocate(self._path, self._ballast, zeroed=False)
