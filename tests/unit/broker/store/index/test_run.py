"""Run files: sorted, checked, merged."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.errors import CorruptIndex
from broker.store.index.run import Run, merge_runs, run_path, write_run
from remoting.native import core as native
from tests.sim.index_entries import run_data


def make(
    directory: Path,
    file_id: int,
    queues: list[int],
    start: dict[int, int],
    position: int,
    counts: list[int] | None = None,
) -> Run:
    """A run of entries in log order; `start` holds each queue's next offset and is moved on."""
    offsets, n = [], len(queues)
    counts = counts or [1] * n
    for queue, count in zip(queues, counts, strict=True):
        offsets.append(start.get(queue, 0))
        start[queue] = offsets[-1] + count
    sealed = (
        np.array(queues, np.uint32),
        np.array(offsets, np.int64),
        np.arange(position, position + n, dtype=np.int64),
        np.full(n, 8, np.uint32),
        np.arange(n, dtype=np.uint32),
        np.array(counts, np.uint32),
    )
    write_run(run_path(directory, file_id), file_id, 0, (position, position + n), run_data(*sealed))
    return Run(run_path(directory, file_id))


def contents(run: Run) -> dict[int, tuple[int, list[int]]]:
    found = {}
    for queue, first, following in zip(run.queues.tolist(), run.first_offsets.tolist(), run.next_offsets, strict=True):
        _, positions, _, _, end = native.core.make_run_table([run]).find(queue, first, int(following))
        assert end == following
        found[queue] = (first, positions.tolist())
    return found


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=40), min_size=1, max_size=4))
def test_merge_is_the_concatenation(parts) -> None:
    """Each queue's entries in order, whichever runs they came from."""
    with tempfile.TemporaryDirectory() as folder:
        directory, start, position, runs = Path(folder), {}, 100, []
        for n, queues in enumerate(parts):
            runs.append(make(directory, n, queues, start, position))
            position += len(queues)
        write_run(run_path(directory, 9), 9, 1, (100, position), merge_runs(runs))
        merged = Run(run_path(directory, 9))
        flat = [queue for queues in parts for queue in queues]
        expected = {
            queue: (0, [100 + n for n, other in enumerate(flat) if other == queue]) for queue in sorted(set(flat))
        }
        assert contents(merged) == expected
        assert (merged.level, merged.first_position, merged.end_position) == (1, 100, position)
        assert dict(zip(merged.queues.tolist(), merged.next_offsets.tolist(), strict=True)) == start
        assert merged.offsets is None


@pytest.mark.parametrize(
    ("column", "values"), [("starts", [0, 1, 4]), ("starts", [1, 2, 3]), ("starts", [0, 3, 3]), ("queues", [3, 1])]
)
def test_a_directory_that_does_not_add_up(tmp_path: Path, column: str, values: list[int]) -> None:
    """With sums that match, it is refused before a merge, and when its entries are listed."""
    data = run_data(np.array([1, 3, 3]), np.array([0, 0, 5]), np.arange(3), np.full(3, 8), np.zeros(3), np.ones(3))
    setattr(data, column, np.array(values, "<u4"))
    write_run(run_path(tmp_path, 1), 1, 0, (0, 3), data)
    run = Run(run_path(tmp_path, 1))
    with pytest.raises(CorruptIndex, match="add up"):
        merge_runs([run, run])
    with pytest.raises(CorruptIndex, match="add up"):
        run.columns()


@pytest.mark.parametrize("counts", [None, [1, 1, 4, 1]])
def test_every_byte_is_covered(tmp_path: Path, counts: list[int] | None) -> None:
    """A flipped bit anywhere is noticed at open or by verify."""
    run = make(tmp_path, 1, [3, 1, 3, 2], {}, 0, counts)
    data = run.path.read_bytes()
    for at in range(len(data)):
        if 60 <= at < 64:
            continue  # reserved zeros
        run.path.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
        with pytest.raises(CorruptIndex):
            Run(run.path).verify()
    run.path.write_bytes(data[:30])
    with pytest.raises(CorruptIndex, match="too few"):
        Run(run.path)
