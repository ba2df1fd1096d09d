"""Runs, the MANIFEST and the offsets file: sorted, checked, merged, and unconfirmed entries in them."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.errors import CorruptIndex
from broker.store.index import run as run_module
from broker.store.index.run import (
    MANIFEST_NAME,
    Entries,
    Manifest,
    Run,
    hide,
    load_manifest,
    load_offsets,
    merge_runs,
    next_offsets_of,
    offsets_path,
    run_path,
    save_manifest,
    save_offsets,
    unconfirmed_entries,
    write_run,
)
from broker.store.log.metadata import sealed_json
from remoting.native import core as native
from remoting.native.vectors import arange, column, full
from tests.sim.index_entries import run_data
from tests.sim.replicas import ReplicaBench
from tests.sim.stores import drain, message


def make(
    directory: Path,
    file_id: int,
    queues: list[int],
    start: dict[int, int],
    position: int,
    counts: list[int] | None = None,
) -> Run:
    """A run of entries in log order; `start` has each queue's next offset and is advanced."""
    offsets, n = [], len(queues)
    counts = counts or [1] * n
    for queue, count in zip(queues, counts, strict=True):
        offsets.append(start.get(queue, 0))
        start[queue] = offsets[-1] + count
    sealed = (
        column(queues, "I"),
        column(offsets, "q"),
        arange(position, position + n),
        full(n, 8, "I"),
        arange(0, n).astype("I"),
        column(counts, "I"),
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
    ("name", "values"), [("starts", [0, 1, 4]), ("starts", [1, 2, 3]), ("starts", [0, 3, 3]), ("queues", [3, 1])]
)
def test_an_inconsistent_directory(tmp_path: Path, name: str, values: list[int]) -> None:
    """With correct checksums it is refused before a merge, and when its entries are listed."""
    data = run_data([1, 3, 3], [0, 0, 5], range(3), [8] * 3, [0] * 3, [1] * 3)
    setattr(data, name, column(values, "I"))
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


def test_join() -> None:
    """Neighbours become one range; nothing stays nothing."""
    one = Entries(column([4, 5], "q"), column([1, 2], "q"), column([8, 8], "I"), column([0, 0], "I"), 6)
    two = Entries(column([6], "q"), column([3], "q"), column([9], "I"), column([1], "I"), 9)
    assert len(Entries.joined([])) == len(Entries.empty()) == 0
    assert Entries.joined([], 7).end == 7
    assert Entries.joined([one]) is one
    joined = Entries.joined([one, two])
    assert (joined.positions.tolist(), joined.sizes.tolist(), joined.tags.tolist()) == ([1, 2, 3], [8, 8, 9], [0, 0, 1])
    assert (joined.offsets.tolist(), joined.end) == ([4, 5, 6], 9)
    assert (one.dense, two.dense, joined.dense, Entries.empty().dense) == (True, False, False, True)


def test_round_trip(tmp_path: Path) -> None:
    """What is saved is loaded."""
    assert load_manifest(tmp_path) is None
    manifest = Manifest(9, 4096, 8, (3, 7))
    save_manifest(tmp_path, manifest)
    assert load_manifest(tmp_path) == manifest
    assert manifest.confirmed == 4096
    save_manifest(tmp_path, partly := Manifest(9, 4096, 8, (3, 7), confirmed_position=0))
    assert load_manifest(tmp_path) == partly
    assert partly.confirmed == 0
    save_offsets(offsets_path(tmp_path, 8), column([5, 0, 7], "q"))
    assert load_offsets(offsets_path(tmp_path, 8)).tolist() == [5, 0, 7]


def test_damage_is_an_error(tmp_path: Path) -> None:
    """Missing, flipped, incomplete."""
    path = offsets_path(tmp_path, 1)
    with pytest.raises(CorruptIndex, match="not there"):
        load_offsets(path)
    save_offsets(path, column([5], "q"))
    data = bytearray(path.read_bytes())
    data[17] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptIndex):
        load_offsets(path)
    (tmp_path / MANIFEST_NAME).write_bytes(sealed_json({"runs": []}))
    with pytest.raises(CorruptIndex, match="next_file_id"):
        load_manifest(tmp_path)


def run_of_one(directory: Path, file_id: int, queue: int, offset: int) -> Run:
    """A run of one entry."""
    columns = [column([value], kind) for value, kind in zip((queue, offset, 0, 8, 0, 1), "IqqIII", strict=True)]
    write_run(run_path(directory, file_id), file_id, 0, (0, 8), run_data(*columns))
    return Run(run_path(directory, file_id))


def test_young_runs_raise_and_never_lower(tmp_path: Path) -> None:
    """Older runs add nothing, a merged one may have an older number, floors count too."""
    runs = [run_of_one(tmp_path, 1, 0, 99), run_of_one(tmp_path, 5, 1, 3), run_of_one(tmp_path, 6, 3, 6)]
    assert next_offsets_of(tmp_path, Manifest(), []).tolist() == []
    assert next_offsets_of(tmp_path, Manifest(), runs).tolist() == [100, 4, 0, 7]
    save_offsets(offsets_path(tmp_path, 4), column([7, 8], "q"))
    manifest = Manifest(offsets_id=4)
    assert next_offsets_of(tmp_path, manifest, runs).tolist() == [7, 8, 0, 7]
    floors = [(column([0, 5], "q"), column([50, 60], "q"))]
    assert next_offsets_of(tmp_path, manifest, runs, floors).tolist() == [50, 8, 0, 7, 0, 60]


def runs_of(directory: Path) -> tuple[list[Run], list[int], int]:
    """Runs over forty records, every fifth of them in two queues; returns where each begins and where the last ends."""
    bench = ReplicaBench(directory, epoch=1, index_tail_entries=16)
    one, two = bench.store.queues.open(b"one"), bench.store.queues.open(b"two")
    begins = []
    for number in range(40):
        begins.append(bench.store.end_position)
        bench.store.append(message([one, two] if number % 5 == 0 else [one], b"x"))
    drain(bench.store)
    index = bench.store._parts.opened.index
    runs, end = list(index.runs), index.manifest.end_position
    bench.close()
    return runs, begins, end


def test_only_what_lies_after_the_position_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In log order; a record in two queues is in one block; blocks are contiguous up to the end of the runs."""
    monkeypatch.setattr(run_module, "BLOCK_ENTRIES", 3)
    runs, begins, end = runs_of(tmp_path / "store")
    found = unconfirmed_entries(runs, begins[7], end)
    positions = [position for block, _ in found for position in block.columns()[2]]
    held = [begin for begin in begins[7:] if begin < end]
    assert positions == sorted(positions)
    assert sorted(set(positions)) == held
    for (block, block_end), (following, _) in pairwise(found):
        assert block.position(len(block) - 1) < block_end == following.position(0)
    assert found[-1][1] == end
    assert {count for block, _ in found for count in block.columns()[5]} == {1}
    assert unconfirmed_entries(runs, end, end) == []


def test_queues_end_before_what_is_hidden(tmp_path: Path) -> None:
    """The confirmed end of each queue is the offset of its first entry that is not; others stay."""
    runs, begins, end = runs_of(tmp_path / "store")
    confirmed = full(3, 1_000, "q")
    hide(confirmed, unconfirmed_entries(runs, begins[7], end))
    assert [confirmed[queue] for queue in sorted(set(runs[0].queues))] == [7, 2]
    assert confirmed.sum() == 1_009


def test_a_damaged_run_is_reported(tmp_path: Path) -> None:
    """Its columns are checked before they are used."""
    _, begins, end = runs_of(tmp_path / "store")
    path = min((tmp_path / "store" / "index").glob("run-*"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    run = Run(run_path(path.parent, int(path.name[4:])))
    with pytest.raises(CorruptIndex):
        unconfirmed_entries([run], begins[0], end)


Part = list[tuple[int, int]]


def written(directory: Path, file_id: int, part: Part, start: dict[int, int]) -> Run:
    """A run of (queue, count) in log order; entry n of run r is at 1000 r + n."""
    offsets = []
    for queue, count in part:
        offsets.append(start.get(queue, 0))
        start[queue] = offsets[-1] + count
    n = len(part)
    columns = (
        [queue for queue, _ in part], offsets,
        range(1000 * file_id, 1000 * file_id + n), [8] * n, range(n), [count for _, count in part],
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
        runs = [written(directory, n, part, start) for n, part in enumerate(parts)]
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
