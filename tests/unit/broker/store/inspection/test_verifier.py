"""The whole check: sound stores pass, each kind of damage is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.inspection.verifier import verify
from broker.store.state import state_kinds
from broker.store.state.state_snapshot import save_snapshot
from broker.store.state.state_tables import StateTables
from tests.sim.log_judge import read_log
from tests.sim.stores import StoreBench


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def checks(directory: Path) -> set[str]:
    return {finding.check for finding in verify(directory).errors}


def test_sound(directory: Path) -> None:
    """Numbers agree with an independent reader of the files."""
    report = verify(directory)
    judged = read_log(directory)
    assert report.errors == []
    assert report.records == len(judged)
    assert report.entries == report.run_entries == sum(len(seen.dispatch) for seen in judged)
    assert report.end_position == report.durable_position == judged[-1].end
    assert report.state_entries == 7  # three queues, the floor of ids, ledger, session, retained message


def test_live_store_is_sound_too(tmp_path: Path, directory: Path) -> None:
    """Beside an open store: what is in the tail is in no run yet, and that is no error."""
    bench = StoreBench(directory)
    from tests.unit.broker.store.inspection.conftest import fill

    fill(bench, 40)
    report = verify(directory)
    assert report.errors == []
    assert report.in_use_by
    bench.close()


@pytest.mark.parametrize("where", ["log", "run", "snapshot", "manifest", "cut"])
def test_damage_is_told(directory: Path, where: str) -> None:
    """By the check that found it."""
    log = directory / "log" / "0".zfill(20)
    if where == "log":
        flip(log, read_log(directory)[30].position + 90)
        assert "log" in checks(directory)
    elif where == "cut":
        log.write_bytes(log.read_bytes()[:2000])
        assert "log" in checks(directory)
    elif where == "run":
        flip(next((directory / "index").glob("run-*")), -3)
        assert checks(directory) == {"index"}
    elif where == "snapshot":
        flip(directory / "state" / "SNAPSHOT", 20)
        assert checks(directory) == {"metadata"}
    else:
        flip(directory / "index" / "MANIFEST", 3)
        assert checks(directory) == {"metadata"}


def test_snapshot_that_says_something_else(directory: Path) -> None:
    """A valid file with a wrong content is found by replaying the log."""
    end = verify(directory).end_position
    tables = StateTables()
    tables.load(state_kinds.LEDGER, b"sink", (b"999", 8))
    save_snapshot(directory / "state", end, tables.freeze())
    (first, *_) = verify(directory).errors
    assert first.check == "state"


def test_retention_leaves_a_sound_store(tmp_path: Path) -> None:
    """Expired files, half-expired runs and carried state are no damage."""
    bench = StoreBench(tmp_path / "data", retention_size_bytes=20_000)
    from tests.unit.broker.store.inspection.conftest import fill

    for _ in range(4):
        fill(bench, 100)
        for _ in range(20):
            bench.store.maintain(0)
            bench.settle()
    assert bench.store.begin_position > 0
    assert verify(bench.directory).errors == []
    bench.close()
    report = verify(bench.directory)
    assert report.errors == []
    assert report.begin_position > 0
