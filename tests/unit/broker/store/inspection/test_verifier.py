"""Checking a data directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from broker.store.index.run import run_path, write_run
from broker.store.inspection.directory import LogFiles, Stretches, Walk, open_directory
from broker.store.inspection.verifier import LogEntries, StateReplay, check_cover, check_run, main, verify
from broker.store.state import state_kinds
from broker.store.state.state_tables import StateTables, save_snapshot
from remoting.native import core as native
from remoting.native.vectors import full
from tests.sim.index_entries import run_data
from tests.sim.log_judge import read_log
from tests.sim.stores import StoreBench, message


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
    """Beside an open store: what is in the tail is in no run yet, which is no error."""
    bench = StoreBench(directory)
    from tests.unit.broker.store.inspection.conftest import fill

    fill(bench, 40)
    report = verify(directory)
    assert report.errors == []
    assert report.in_use_by
    bench.close()


@pytest.mark.parametrize("where", ["log", "run", "snapshot", "manifest", "cut"])
def test_damage_is_reported(directory: Path, where: str) -> None:
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


def test_a_snapshot_with_other_content(directory: Path) -> None:
    """A valid file with wrong content is found by replaying the log."""
    end = verify(directory).end_position
    tables = StateTables()
    tables.load(state_kinds.LEDGER, b"sink", (b"999", 8))
    save_snapshot(directory / "state", end, tables.freeze())
    (first, *_) = verify(directory).errors
    assert first.check == "state"


def test_retention_leaves_a_sound_store(tmp_path: Path) -> None:
    """Expired files, half-expired runs and carried state are no damage."""
    bench = StoreBench(tmp_path / "data", retention_size_bytes=49_152)
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


def filled(tmp_path: Path) -> Path:
    bench = StoreBench(tmp_path / "data")
    queues = bench.store.queues.open_all([b"a", b"b"])
    for n in range(200):
        bench.store.append(message(queues[: 1 + n % 2], b"%d" % n))
    bench.settle()
    bench.close()
    return tmp_path / "data"


def test_sound_directory(tmp_path: Path, capsys) -> None:
    """Counts of what is there, exit status 0."""
    directory = filled(tmp_path)
    assert main([str(directory), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["entries"], report["run_entries"], report["queues"], report["errors"]) == (300, 300, 2, [])
    assert main([str(directory)]) == 0
    said = capsys.readouterr().out
    assert "records: 201" in said
    assert "run entries: 300" in said
    assert "no further record\nsound\n" in said
    assert "magic" not in said


def test_damage_is_found(tmp_path: Path, capsys) -> None:
    """A flipped bit in a run or in the log below the index is an error."""
    directory = filled(tmp_path)
    log = directory / "log" / "0".zfill(20)
    data = bytearray(log.read_bytes())
    data[3000] ^= 1
    log.write_bytes(data)
    assert main([str(directory), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["errors"]
    data[3000] ^= 1
    log.write_bytes(data)
    run = next((directory / "index").glob("run-*"))
    content = bytearray(run.read_bytes())
    content[-3] ^= 1
    run.write_bytes(content)
    assert main([str(directory)]) == 1
    assert "columns" in capsys.readouterr().out


def test_a_log_that_ends_before_its_durable_position(tmp_path: Path, capsys) -> None:
    """Damage that no index covers is found by the checkpoint; a damaged checkpoint is an error by itself."""
    directory = filled(tmp_path)
    shutil.rmtree(directory / "index")
    log = directory / "log" / "0".zfill(20)
    data = bytearray(log.read_bytes())
    data[3000] ^= 1
    log.write_bytes(data)
    assert main([str(directory)]) == 1
    assert "below the durable" in capsys.readouterr().out
    (directory / "CHECKPOINT").write_text("{}\n0\n")
    assert main([str(directory)]) == 1
    assert "CHECKPOINT" in capsys.readouterr().out


def test_no_directory(tmp_path: Path, capsys) -> None:
    """Something else gets exit status 2."""
    assert main([str(tmp_path)]) == 2


def entries_of(found) -> LogEntries:
    entries = LogEntries()
    for file, first, end in Stretches(found.files, 0):
        assert not list(entries.add(native.core.survey(file.view, file.base, first, end)[1]))
    return entries


def test_sound_runs(directory: Path) -> None:
    """Nothing to report about what the store wrote."""
    found = open_directory(directory)
    entries = entries_of(found)
    assert len(entries) == sum(run.entry_count for run in found.runs)
    assert [text for run in found.runs for text in check_run(run, entries, 0)] == []
    assert list(check_cover(found.runs, 0, found.manifest.end_position)) == []


def test_valid_run_with_wrong_content(directory: Path) -> None:
    """Valid checksums, wrong content: the difference is named."""
    found = open_directory(directory)
    entries = entries_of(found)
    run = found.runs[0]
    qid, offset, position, size, tag = (column.astype(column.kind) for column in run.columns())
    position[2] += 8
    path = run_path(directory / "index", 999)
    data = run_data(qid, offset, position, size, tag, full(len(qid), 1, "I"))
    write_run(path, 999, 0, (run.first_position, run.end_position), data)
    (difference,) = check_run(type(run)(path), entries, 0)
    assert f"position {int(position[2])}/{int(position[2]) - 8}" in difference


def test_holes_in_the_cover(directory: Path) -> None:
    """A run missing between two others is found."""
    found = open_directory(directory)
    assert len(found.runs) > 1
    assert list(check_cover(found.runs[1:], 0, found.manifest.end_position))
    assert list(check_cover(found.runs, 0, 8))


def test_a_restarted_index_covers_nothing_yet(directory: Path) -> None:
    """A rebuild that was cut short before its first run, in a log that retention has shortened."""
    assert list(check_cover([], 4096, 0)) == []
    found = open_directory(directory)
    assert list(check_cover(found.runs, 4096, 8))


def test_whole_log_gives_the_tables_of_the_store(directory: Path) -> None:
    """Every kind, retained messages included."""
    replay = StateReplay(StateTables(), 0)
    for step in Walk(LogFiles(directory / "log"), 0):
        replay.take(*step)
    bench = StoreBench(directory)
    for kind in state_kinds.NAMES:
        assert dict(replay.tables.items(kind)) == dict(bench.store.state.items(kind))
    assert replay.tables.count(state_kinds.RETAINED) == 1
    bench.close()


def test_open_group_leaves_no_trace(directory: Path) -> None:
    """Without its last record a group does not exist."""
    steps = list(Walk(LogFiles(directory / "log"), 0))
    opened = next(at for at, (_, _, head) in enumerate(steps) if head[9] & 0x10)
    replay = StateReplay(StateTables(), 0)
    for step in steps[: opened + 1]:
        replay.take(*step)
    assert replay.tables.count(state_kinds.LEDGER) == 0
    replay.take(*steps[opened + 1])
    assert replay.tables.count(state_kinds.LEDGER) == 1
