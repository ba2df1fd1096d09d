"""Runs against the log."""

from __future__ import annotations

from pathlib import Path

from broker.store.inspection.directory import open_directory
from broker.store.inspection.index_check import LogEntries, check_cover, check_run
from broker.store.inspection.log_files import Walk
from broker.store.queue_index.run import run_path, write_run


def entries_of(found) -> LogEntries:
    entries = LogEntries()
    for file, at, head in Walk(found.files, 0):
        assert not list(entries.add(file.view, at, file.base + at, head))
    return entries


def test_sound_runs(directory: Path) -> None:
    """Nothing to say about what the store wrote."""
    found = open_directory(directory)
    entries = entries_of(found)
    assert len(entries) == sum(run.entry_count for run in found.runs)
    assert [text for run in found.runs for text in check_run(run, entries, 0)] == []
    assert list(check_cover(found.runs, 0, found.manifest.end_position)) == []


def test_valid_run_with_wrong_content(directory: Path) -> None:
    """Checksums in order, content not: the difference is named."""
    found = open_directory(directory)
    entries = entries_of(found)
    run = found.runs[0]
    qid, position, size, tag = (column.copy() for column in run.columns())
    position[2] += 8
    path = run_path(directory / "index", 999)
    write_run(path, 999, 0, (run.first_position, run.end_position), (run.first_offsets,), (qid, position, size, tag))
    (difference,) = check_run(type(run)(path), entries, 0)
    assert f"position {int(position[2])}/{int(position[2]) - 8}" in difference


def test_holes_in_the_cover(directory: Path) -> None:
    """A run that is missing between two others shows."""
    found = open_directory(directory)
    assert len(found.runs) > 1
    assert list(check_cover(found.runs[1:], 0, found.manifest.end_position))
    assert list(check_cover(found.runs, 0, 8))
