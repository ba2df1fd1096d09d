"""The free-space floor and the ballast."""

from __future__ import annotations

import errno
from pathlib import Path

from broker.store.log.disk_guard import DiskGuard
from runtime.faults import FaultPoints


class Recorder:
    """Remembers the names of events."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def error(self, name: str, **_: object) -> None:
        self.names.append(name)

    info = error


def test_floor_and_ballast(tmp_path: Path) -> None:
    """Below the floor the ballast goes and appends are refused; with room again it comes back."""
    faults = FaultPoints()
    events = Recorder()
    guard = DiskGuard(tmp_path, 1, 8192, 4096, faults, events)
    assert (guard.full, (tmp_path / "BALLAST").stat().st_size) == (False, 8192)
    faults.arm("disk.free", OSError(errno.ENOSPC, "full"))
    guard.check()
    assert guard.full
    assert not (tmp_path / "BALLAST").exists()
    assert "free_space_bytes_min" in str(guard.refusal())
    guard.check()
    assert not guard.full
    assert (tmp_path / "BALLAST").exists()
    assert events.names == ["disk_full", "disk_has_room"]


def test_the_ballast_of_a_small_log_is_small(tmp_path: Path) -> None:
    """It gets its size when the log does, and none when the full one is there already."""
    log_bytes, ballast = [0], tmp_path / "BALLAST"
    guard = DiskGuard(tmp_path, 1, 65_536, 4096, FaultPoints(), Recorder(), lambda: log_bytes[0])
    assert ballast.stat().st_size == 4096
    log_bytes[0] = 4 * 65_536 - 1
    guard.check()
    assert ballast.stat().st_size == 4096
    log_bytes[0] += 1
    guard.check()
    assert ballast.stat().st_size == 65_536
    log_bytes[0] = 0
    DiskGuard(tmp_path, 1, 65_536, 4096, FaultPoints(), Recorder(), lambda: log_bytes[0]).check()
    assert ballast.stat().st_size == 65_536


def test_a_write_without_room_waits_until_a_file_fits(tmp_path: Path) -> None:
    """Free space above the floor is not enough."""
    guard = DiskGuard(tmp_path, 1, 8192, 1 << 62, FaultPoints(), Recorder())
    guard.run_full()
    guard.check()
    assert guard.full
    assert "too little for the next file" in str(guard.refusal())
    guard._resume_at = 4096
    guard.check()
    assert not guard.full


def test_a_floor_above_the_disk_is_full_at_once(tmp_path: Path) -> None:
    """More wanted than any disk has."""
    assert DiskGuard(tmp_path, 1 << 62, 0, 0, FaultPoints(), Recorder()).full
