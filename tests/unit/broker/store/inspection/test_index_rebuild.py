"""Rebuilding the index of a stopped store."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from broker.store.errors import CorruptLog
from broker.store.inspection.commands import ASIDE, rebuild_index
from broker.store.inspection.verifier import verify
from runtime.files import DirectoryLocked
from tests.sim.log_judge import read_log
from tests.sim.stores import StoreBench
from tests.support.clock import ManualClock


def rebuild(directory: Path) -> dict[str, int]:
    return rebuild_index(directory, clock=ManualClock(), log=structlog.get_logger())


def test_the_index_is_rebuilt(directory: Path) -> None:
    """A damaged one is replaced by one that agrees with the log."""
    run = next((directory / "index").glob("run-*"))
    data = bytearray(run.read_bytes())
    data[-1] ^= 1
    run.write_bytes(data)
    assert verify(directory).errors
    done = rebuild(directory)
    report = verify(directory)
    assert report.errors == []
    assert (done["records"], done["end_position"], done["queues"]) == (report.records, report.end_position, 3)
    assert not (directory / ASIDE).exists()


def test_store_in_use_is_refused(directory: Path) -> None:
    """The owner keeps working with its own index."""
    bench = StoreBench(directory)
    with pytest.raises(DirectoryLocked):
        rebuild(directory)
    bench.close()
    assert verify(directory).errors == []


def test_damaged_log_is_kept_with_its_index(directory: Path) -> None:
    """Also when only the tail file proves how far the log was durable."""
    (directory / "CHECKPOINT").unlink()
    path = directory / "log" / "0".zfill(20)
    data = bytearray(path.read_bytes())
    data[read_log(directory)[20].position + 80] ^= 1
    path.write_bytes(data)
    runs = sorted((directory / "index").glob("run-*"))
    with pytest.raises(CorruptLog):
        rebuild(directory)
    assert path.read_bytes() == data
    assert sorted((directory / "index").glob("run-*")) == runs
