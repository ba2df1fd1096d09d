"""Groups of records that were taken over, and where they are confirmed."""

from __future__ import annotations

from pathlib import Path

from broker.store.log.taken_group import taken_groups, whole_groups
from remoting.native import core as native
from tests.sim.log_judge import read_log
from tests.sim.stores import StoreBench, message


def test_a_stretch_without_entries_is_one_group() -> None:
    """State changes alone are confirmed too."""
    (group,) = taken_groups(8, 96, [])
    assert (group.first_position, group.end_position, len(group.entries), group.pieces) == (8, 96, 0, [])


def test_blocks_that_end_within_a_group_wait_for_its_end(tmp_path: Path) -> None:
    """Whatever the blocks cover, each is confirmed with the whole group that it ends in, the last one with the log."""
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    for count in (1, 4, 1, 3):
        bench.store.append(*[message([queue], bytes(50)) for _ in range(count)], atomic=True)
    ends = [seen.end for seen in read_log(bench.directory)]
    block = native.core.make_block([queue], [0], [0], [0], [0], [1])
    groups = whole_groups(bench.store._log, 0, [(block, end) for end in ends])
    assert [group.end_position for group in groups] == [
        ends[0], ends[1], *[ends[5]] * 4, ends[6], *[ends[9]] * 3
    ]  # fmt: skip
    part = whole_groups(bench.store._log, 0, [(block, ends[3])])
    assert [(group.end_position, len(group.entries)) for group in part] == [(ends[9], 1)]
    part = whole_groups(bench.store._log, 0, [(block, ends[5])])
    assert [(group.end_position, len(group.entries)) for group in part] == [(ends[5], 1), (ends[9], 0)]
    assert whole_groups(bench.store._log, ends[9], []) == []
    bench.close()
