"""Run files: sorted, checked, merged."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.errors import CorruptIndex
from broker.store.queue_index.run import Run, merge_runs, run_path, sort_entries, write_run


def make(directory: Path, file_id: int, queues: list[int], start: dict[int, int], position: int) -> Run:
    """A run of entries in log order; `start` holds each queue's next offset and is moved on."""
    offsets = []
    for queue in queues:
        offsets.append(start.get(queue, 0))
        start[queue] = offsets[-1] + 1
    n = len(queues)
    sealed = (
        np.array(queues, np.uint32),
        np.array(offsets, np.int64),
        np.arange(position, position + n, dtype=np.int64),
        np.full(n, 8, np.uint32),
        np.arange(n, dtype=np.uint32),
    )
    write_run(run_path(directory, file_id), file_id, 0, (position, position + n), *sort_entries(sealed))
    return Run(run_path(directory, file_id))


def contents(run: Run) -> dict[int, tuple[int, list[int]]]:
    found = {}
    for queue in run.queues.tolist():
        first, start, end = run.span(queue)
        found[queue] = (first, run.entries(start, end).positions.tolist())
    return found


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=40), min_size=1, max_size=4))
def test_merge_is_the_concatenation(parts) -> None:
    """Each queue's entries in order, whichever runs they came from."""
    with tempfile.TemporaryDirectory() as folder:
        directory, start, position, runs = Path(folder), {}, 100, []
        for n, queues in enumerate(parts):
            runs.append(make(directory, n, queues, start, position))
            position += len(queues)
        write_run(run_path(directory, 9), 9, 1, (100, position), *merge_runs(runs))
        merged = Run(run_path(directory, 9))
        flat = [queue for queues in parts for queue in queues]
        expected = {
            queue: (0, [100 + n for n, other in enumerate(flat) if other == queue]) for queue in sorted(set(flat))
        }
        assert contents(merged) == expected
        assert (merged.level, merged.first_position, merged.end_position) == (1, 100, position)
        assert dict(zip(merged.queues.tolist(), merged.next_offsets().tolist(), strict=True)) == start
        assert merged.span(77) is None


def test_every_byte_is_covered(tmp_path: Path) -> None:
    """A flipped bit anywhere is noticed at open or by verify."""
    run = make(tmp_path, 1, [3, 1, 3, 2], {}, 0)
    data = run.path.read_bytes()
    for at in range(len(data)):
        if 56 <= at < 64:
            continue  # reserved zeros
        run.path.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
        with pytest.raises(CorruptIndex):
            Run(run.path).verify()
    run.path.write_bytes(data[:30])
    with pytest.raises(CorruptIndex, match="too few"):
        Run(run.path)
