"""The offset map against plain lists of (source offset, target offset), also when old runs become coarse."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from broker.migration import offset_map
from broker.migration.offset_map import BothWays, CopiedRun, OffsetMap

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


def check(forth: OffsetMap, pairs: list[tuple[int, int]], *, exact: bool) -> None:
    found = BothWays(forth)
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
        empty = BothWays(found)
        assert (empty.copied, empty.to_target(7), empty.to_source(7)) == (None, 0, None)
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
        assert BothWays(found).to_target(pairs[-1][0] + 1) == pairs[-1][1] + 1
        check(found, pairs, exact=False)


BACK_STEPS = st.lists(
    st.sampled_from(["from there", "from here", "copy", "copy", "send back", "send back", "read", "read", "again"]),
    max_size=60,
)


class Logs:
    """Two logs that are mirrored into each other with delays; a message is a number, one sent here a negative one."""

    def __init__(self) -> None:
        self.there: list[int] = []
        self.here: list[int] = []
        self.both = BothWays()
        self.both.back.begin(0, 0)
        self.copied = self.sent = 0

    def step(self, what: str, number: int) -> None:
        if what == "from there":
            self.there.append(number)
        elif what == "from here":
            self.here.append(-number)
        elif what == "send back":
            self.send_back()
        elif what == "again":
            self.there += [one for one in reversed(self.there) if one < 0 and self.both.back.holding][:1]
        elif self.copied < len(self.there):
            self.copy(self.there[self.copied])
            self.copied += 1

    def send_back(self) -> None:
        while self.sent < len(self.here) and self.here[self.sent] > 0:
            self.sent += 1
        self.there += self.here[self.sent : self.sent + 1]
        self.sent += 1 if self.sent < len(self.here) else 0

    def copy(self, message: int) -> None:
        if message > 0:
            self.both.forth.add(self.copied, len(self.here), 1)
            self.here.append(message)
        elif self.here.index(message) < self.both.back.target_end:
            self.both.back.repeat(self.copied)
        else:
            self.both.back.add(self.copied, self.here.index(message), 1)


@given(BACK_STEPS)
def test_both_ways_map_what_either_side_has_first(steps: list[str]) -> None:
    """Offsets never skip what was not consumed, whatever lies between."""
    logs = Logs()
    for number, what in enumerate(steps, 1):
        logs.step(what, number)
    both, here, there = logs.both, logs.here, logs.there[: logs.copied]
    assert both.waiting(len(here)) == sum(one < 0 and one not in there for one in here)
    for begin in range(len(here) + 1):
        ranges = both.copies(begin, len(here))
        assert [at for pair in ranges for at in range(*pair)] == [at for at in range(begin, len(here)) if here[at] > 0]
    for offset in range(len(there) + 1):
        wanted = [here.index(one) for one in set(there[offset:]) - set(there[:offset])]
        assert both.to_target(offset) <= min(wanted, default=len(here))
        assert wanted or both.to_target(offset) == max((here.index(one) + 1 for one in there), default=0)
    for offset in range(len(here) + 1):
        assert set(there[: both.to_source(offset) or 0]) <= set(here[:offset])
