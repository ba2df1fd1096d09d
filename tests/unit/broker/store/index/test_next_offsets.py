"""Next offsets from the offsets file and the runs behind it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from broker.store.index.manifest import Manifest, offsets_path, save_offsets
from broker.store.index.next_offsets import next_offsets_of
from broker.store.index.run import Run, run_path, write_run
from tests.sim.index_entries import run_data


def run(directory: Path, file_id: int, queue: int, offset: int) -> Run:
    """A run of one entry."""
    columns = [np.array([value], kind) for value, kind in zip((queue, offset, 0, 8, 0, 1), "IqqIII", strict=True)]
    write_run(run_path(directory, file_id), file_id, 0, (0, 8), run_data(*columns))
    return Run(run_path(directory, file_id))


def test_young_runs_raise_and_never_lower(tmp_path: Path) -> None:
    """Older runs say nothing new, a merged one may say something old, floors count too."""
    runs = [run(tmp_path, 1, 0, 99), run(tmp_path, 5, 1, 3), run(tmp_path, 6, 3, 6)]
    assert next_offsets_of(tmp_path, Manifest(), []).tolist() == []
    assert next_offsets_of(tmp_path, Manifest(), runs).tolist() == [100, 4, 0, 7]
    save_offsets(offsets_path(tmp_path, 4), np.array([7, 8]))
    manifest = Manifest(offsets_id=4)
    assert next_offsets_of(tmp_path, manifest, runs).tolist() == [7, 8, 0, 7]
    floors = [(np.array([0, 5]), np.array([50, 60]))]
    assert next_offsets_of(tmp_path, manifest, runs, floors).tolist() == [50, 8, 0, 7, 0, 60]
