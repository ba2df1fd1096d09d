"""Runs made by sorting and by merging, with and without batches."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from broker.store.index.run import Run, merge_runs, run_path, write_run
from remoting.native import core as native
from tests.sim.index_entries import run_data

Part = list[tuple[int, int]]


def make(directory: Path, file_id: int, part: Part, start: dict[int, int]) -> Run:
    """A run of (queue, count) in log order; entry n of run r stands at 1000 r + n."""
    offsets = []
    for queue, count in part:
        offsets.append(start.get(queue, 0))
        start[queue] = offsets[-1] + count
    n = len(part)
    columns = (
        np.array([queue for queue, _ in part], np.uint32), np.array(offsets, np.int64),
        np.arange(1000 * file_id, 1000 * file_id + n), np.full(n, 8, np.uint32), np.arange(n, dtype=np.uint32),
        np.array([count for _, count in part], np.uint32),
    )  # fmt: skip
    bounds = (1000 * file_id, 1000 * file_id + n)
    write_run(run_path(directory, file_id), file_id, 0, bounds, run_data(*columns))
    return Run(run_path(directory, file_id))


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 1, 1, 2, 300])), min_size=1, max_size=30),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_every_offset_is_found(parts: list[Part]) -> None:
    """From any offset up to any other, over the runs and the merged one; offsets are kept only where they must be."""
    with tempfile.TemporaryDirectory() as folder:
        start: dict[int, int] = {}
        directory, model = Path(folder), {queue: [] for queue in range(4)}
        runs = [make(directory, n, part, start) for n, part in enumerate(parts)]
        for n, part in enumerate(parts):
            for at, (queue, count) in enumerate(part):
                before = model[queue][-1][1] if model[queue] else 0
                model[queue].append((before, before + count, 1000 * n + at))
        write_run(run_path(directory, 9), 9, 1, (0, 9000), merge_runs(runs))
        merged = Run(run_path(directory, 9))
        apart, joined = native.core.make_run_table(runs), native.core.make_run_table([merged])
        assert (merged.offsets is None) == all(count == 1 for part in parts for _, count in part)
        for queue, entries in model.items():
            for first, behind, position in entries:
                for offset in {first, behind - 1}:
                    for limit in (offset + 1, offset + 2, behind + 5):
                        wanted = [one for one in entries if one[1] > offset and one[0] < limit]
                        for table in (apart, joined):
                            offsets, positions, _, _, end = table.find(queue, offset, limit)
                            assert offsets.tolist() == [one[0] for one in wanted]
                            assert positions.tolist() == [one[2] for one in wanted]
                            assert end == wanted[-1][1]
                assert apart.first_at(queue, position) == joined.first_at(queue, position) == first
            assert apart.first_at(queue, 9000) == joined.first_at(queue, 9000) == -1
            assert len(joined.find(queue, start.get(queue, 0), 10**6)[0]) == 0
