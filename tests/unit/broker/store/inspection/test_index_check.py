"""Runs against the log."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from broker.store.index.run import run_path, write_run
from broker.store.inspection.directory import Stretches, open_directory
from broker.store.inspection.verifier import LogEntries, check_cover, check_run
from remoting.native import core as native
from tests.sim.index_entries import run_data


def entries_of(found) -> LogEntries:
    entries = LogEntries()
    for file, first, end in Stretches(found.files, 0):
        assert not list(entries.add(native.core.survey(file.view, file.base, first, end)[1]))
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
    qid, offset, position, size, tag = (column.copy() for column in run.columns())
    position[2] += 8
    path = run_path(directory / "index", 999)
    data = run_data(qid, offset, position, size, tag, np.ones(len(qid), np.uint32))
    write_run(path, 999, 0, (run.first_position, run.end_position), data)
    (difference,) = check_run(type(run)(path), entries, 0)
    assert f"position {int(position[2])}/{int(position[2]) - 8}" in difference


def test_holes_in_the_cover(directory: Path) -> None:
    """A run that is missing between two others shows."""
    found = open_directory(directory)
    assert len(found.runs) > 1
    assert list(check_cover(found.runs[1:], 0, found.manifest.end_position))
    assert list(check_cover(found.runs, 0, 8))


def test_an_index_begun_anew_covers_nothing_yet(directory: Path) -> None:
    """A rebuild that was cut short before its first run, in a log that retention has shortened."""
    assert list(check_cover([], 4096, 0)) == []
    found = open_directory(directory)
    assert list(check_cover(found.runs, 4096, 8))
