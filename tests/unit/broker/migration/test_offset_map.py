"""The offset map against plain lists of (source offset, target offset), also when old runs become coarse."""

from __future__ import annotations

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
    """Every message lies in a run, at its place in an exact one, at it or above in a coarse one."""
    for source, target in pairs:
        (run,) = [run for run in found.runs if run.source <= source < run.source_end]
        place = run.target + source - run.source
        assert place == target if exact or run.count == run.span else place <= target < run.target_end


@given(STEPS)
def test_offsets_are_mapped_both_ways(steps: list[tuple[str, int]]) -> None:
    found, pairs, stored = built(steps)
    assert OffsetMap(stored.values()).runs == found.runs
    if not pairs:
        assert found.copied is None
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
        check(found, pairs, exact=False)
