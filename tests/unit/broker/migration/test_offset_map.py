"""The offset map against plain lists of (source offset, target offset), also when old runs become coarse."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from broker.migration import offset_map
from broker.migration.offset_map import CopiedRun, OffsetMap

STEPS = st.lists(st.tuples(st.sampled_from(["copy", "foreign", "deleted"]), st.integers(1, 4)), max_size=30)


def built(steps: list[tuple[str, int]]) -> tuple[OffsetMap, list[tuple[int, int]], dict[int, CopiedRun]]:
    """The map after some steps, the copied messages, and the runs as a broker stores them."""
    found, pairs, stored = OffsetMap(), [], {}
    source = target = 0
    for what, count in steps:
        if what == "foreign":
            target += count
        elif what == "deleted":
            source += count
        else:
            for start, run in found.add(source, target, count):
                if run is None:
                    del stored[start]
                else:
                    stored[start] = run
            pairs += [(source + at, target + at) for at in range(count)]
            source, target = source + count, target + count
    return found, pairs, stored


def check(found: OffsetMap, pairs: list[tuple[int, int]], *, exact: bool) -> None:
    sources, targets = [one for one, _ in pairs], [one for _, one in pairs]
    for offset in range(max(sources) + 3):
        at = bisect_left(sources, offset)
        first = targets[at] if at < len(pairs) else targets[-1] + 1
        assert found.to_target(offset) == first if exact else found.to_target(offset) <= first
    for offset in range(max(targets) + 3):
        at = bisect_left(targets, offset)
        mapped = found.to_source(offset)
        assert mapped is not None
        # Every source message below the mapped offset is consumed at the target.
        consumed = bisect_left(sources, mapped)
        assert consumed == at if exact else consumed <= at


@given(STEPS)
def test_offsets_are_mapped_both_ways(steps: list[tuple[str, int]]) -> None:
    found, pairs, stored = built(steps)
    assert OffsetMap(stored.values()).runs == found.runs
    if not pairs:
        assert (found.copied, found.to_target(7), found.to_source(7)) == (None, 0, None)
        return
    assert found.copied == pairs[-1][0] + 1
    check(found, pairs, exact=True)


@given(STEPS, st.integers(2, 4))
def test_coarse_runs_never_map_too_high(steps: list[tuple[str, int]], limit: int) -> None:
    former, offset_map.RUNS_MAX = offset_map.RUNS_MAX, limit  # type: ignore[misc]
    try:
        found, pairs, stored = built(steps)
    finally:
        offset_map.RUNS_MAX = former  # type: ignore[misc]
    assert len(found.runs) <= limit
    assert OffsetMap(stored.values()).runs == found.runs
    if pairs:
        assert found.copied == pairs[-1][0] + 1
        assert found.to_target(pairs[-1][0] + 1) == pairs[-1][1] + 1
        check(found, pairs, exact=False)
