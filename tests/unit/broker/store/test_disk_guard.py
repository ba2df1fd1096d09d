"""The free-space floor and the ballast."""

from __future__ import annotations

import errno
from pathlib import Path

from broker.store.disk_guard import DiskGuard
from runtime.faults import FaultPoints


def test_floor_and_ballast(tmp_path: Path) -> None:
    """Below the floor the ballast goes and appends are refused; with room again it comes back."""
    faults = FaultPoints()
    guard = DiskGuard(tmp_path, 1, 8192, faults)
    assert (guard.full, (tmp_path / "BALLAST").stat().st_size) == (False, 8192)
    faults.arm("disk.free", OSError(errno.ENOSPC, "full"))
    guard.check()
    assert guard.full
    assert not (tmp_path / "BALLAST").exists()
    assert "free_space_bytes_min" in str(guard.refusal())
    guard.check()
    assert not guard.full
    assert (tmp_path / "BALLAST").exists()


def test_a_floor_above_the_disk_is_full_at_once(tmp_path: Path) -> None:
    """More wanted than any disk has."""
    assert DiskGuard(tmp_path, 1 << 62, 0, FaultPoints()).full
