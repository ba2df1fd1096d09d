"""What stops a store: free space below the floor, and the first failure."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.errors import StoreFailed, StoreFull
from broker.store.log.failure import DiskGuard, Failure
from runtime.faults import FaultPoints
from tests.sim.stores import StoreBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[StoreBench]:
    made = StoreBench(tmp_path / "data")
    yield made
    made.close()


def test_a_full_disk_refuses_all_but_what_frees_space(bench: StoreBench) -> None:
    failure: Failure = bench.store._parts.failure
    failure.check()
    assert isinstance(failure.write_failed(OSError(errno.ENOSPC, "full")), StoreFull)
    assert (failure.error, isinstance(failure.refusal, StoreFull)) == (None, True)
    failure.check(essential=True)
    with pytest.raises(StoreFull):
        failure.check()


def test_the_first_failure_reaches_all_callbacks(bench: StoreBench) -> None:
    """Pending and later callbacks get it, and closing does not hide it."""
    store, heard = bench.store, []
    store.when_confirmed(store.end_position + 1, heard.append)
    failure = store._parts.failure
    failure.flush_failed(OSError(errno.EIO, "first"))
    failure.flush_failed(OSError(errno.EIO, "second"))
    failure.end(StoreFailed("closed"))
    assert "first" in str(failure.error)
    assert store.refusal is failure.error
    assert heard == [failure.error]
    with pytest.raises(StoreFailed, match="first"):
        failure.check(essential=True)


class Recorder:
    """Records the names of events."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def error(self, name: str, **_: object) -> None:
        self.names.append(name)

    info = error


def test_floor_and_ballast(tmp_path: Path) -> None:
    """Below the floor the ballast is removed and appends are refused; with room again it is restored."""
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
    """It grows with the log, and no new one is written when the full one exists already."""
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
    """Higher than any disk."""
    assert DiskGuard(tmp_path, 1 << 62, 0, 0, FaultPoints(), Recorder()).full
