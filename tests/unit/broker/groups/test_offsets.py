"""Group offsets: last write wins, restart included."""

from __future__ import annotations

from broker.groups.offsets import GroupOffsets


def test_commit_query_reset_and_restart(bench) -> None:
    offsets = GroupOffsets(bench.store)
    assert offsets.get("g", "t", 0) is None
    end = offsets.commit([("g", "t", 0, 5), ("g", "t", 1, 6), ("g2", "t", 0, 7)])
    offset, position = offsets.get("g", "t", 0)
    assert offset == 5
    assert position <= end
    offsets.commit([("g", "t", 0, 2)])
    again = GroupOffsets(bench.reopen())
    assert again.get("g", "t", 0)[0] == 2
    assert again.of_group("g") == {("t", 0): 2, ("t", 1): 6}
    assert again.by_group() == {"g": {("t", 0): 2, ("t", 1): 6}, "g2": {("t", 0): 7}}
