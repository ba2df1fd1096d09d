"""Limits, ranges and tasks, as properties over made-up logs."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from spark_connector.options.option_table import EARLIEST, LATEST, QueueName, StartingPoint
from spark_connector.queues import QueueKey, QueueRange
from spark_connector.reading import planner
from spark_connector.reading.selection import Bounds

KEYS = [QueueKey("t", "b", number) for number in range(6)]


@st.composite
def logs(draw: st.DrawFn) -> tuple[dict[QueueKey, int], dict[QueueKey, Bounds]]:
    """Positions and bounds that fit each other."""
    start, bounds = {}, {}
    for number, key in enumerate(draw(st.lists(st.sampled_from(KEYS), unique=True))):
        low = draw(st.integers(0, 50))
        high = low + draw(st.integers(0, 100))
        bounds[key] = Bounds(number, low, high)
        if draw(st.booleans()):
            start[key] = draw(st.integers(low, high))
    return start, bounds


@given(logs(), st.none() | st.integers(1, 200))
def test_advance_never_goes_back_and_never_starves(
    log: tuple[dict[QueueKey, int], dict[QueueKey, Bounds]], limit: int | None
) -> None:
    start, bounds = log
    ends = planner.advance(start, bounds, rows_max=limit)
    moved = 0
    for key, queue in bounds.items():
        begin = max(start.get(key, 0), queue.min)
        assert start.get(key, 0) <= ends[key] <= queue.max
        if queue.max > begin:
            assert ends[key] > begin, "a queue with rows waiting gets at least one"
            moved += ends[key] - begin
    if limit is not None:
        assert moved <= max(limit, len(bounds))


@given(logs(), st.integers(1, 8), st.none() | st.integers(1, 8), st.none() | st.integers(1, 40))
def test_tasks_cover_the_work_exactly(
    log: tuple[dict[QueueKey, int], dict[QueueKey, Bounds]], cores: int, least: int | None, most: int | None
) -> None:
    start, bounds = log
    work, _ = planner.ranges(start, planner.advance(start, bounds), bounds)
    cut = planner.tasks(work, cores=cores, partitions_min=least, records_max=most)
    offsets = [(one.key, at) for task in cut for one in task for at in range(one.start, one.end)]
    assert offsets == [(one.key, at) for one in work for at in range(one.start, one.end)]
    assert all(sum(one.rows for one in task) for task in cut)
    if most is not None:
        assert all(sum(one.rows for one in task) <= most for task in cut)


def test_tasks_pay_for_themselves() -> None:
    big = [QueueRange(KEYS[0], 1, 0, 1_000_000)]
    small = [QueueRange(key, 1, 0, 10) for key in KEYS]
    assert len(planner.tasks(big, cores=4)) == 4
    assert len(planner.tasks(small, cores=4)) == 1
    assert len(planner.tasks(small, cores=4, partitions_min=3)) == 3
    assert planner.tasks([], cores=4) == []


def test_shares_are_in_proportion() -> None:
    bounds = {
        KEYS[0]: Bounds(0, 0, 900),
        KEYS[1]: Bounds(1, 0, 90),
        KEYS[2]: Bounds(2, 0, 10),
        KEYS[3]: Bounds(3, 0, 0),
    }
    ends = planner.advance({}, bounds, rows_max=100)
    assert ends == {KEYS[0]: 90, KEYS[1]: 9, KEYS[2]: 1, KEYS[3]: 0}


def test_a_cap_ends_the_run() -> None:
    bounds = {KEYS[0]: Bounds(0, 0, 10), KEYS[1]: Bounds(1, 0, 10)}
    assert planner.advance({KEYS[0]: 5}, bounds, cap={KEYS[0]: 7}) == {KEYS[0]: 7, KEYS[1]: 0}


def test_what_expired_after_a_beginning() -> None:
    """Only queues whose beginning lies before what is left; a missing queue is skipped."""
    bounds = {KEYS[0]: Bounds(1, 5, 9), KEYS[1]: Bounds(2, 0, 9)}
    assert planner.expired_ranges({KEYS[0]: 2, KEYS[1]: 0, KEYS[2]: 1}, bounds) == {KEYS[0]: (2, 5)}
    assert planner.expired_ranges({KEYS[0]: 5}, bounds) == {}


def test_losses_are_named() -> None:
    bounds = {KEYS[0]: Bounds(0, 5, 10)}
    text = "; ".join(planner.losses({KEYS[0]: 2, KEYS[1]: 1}, bounds) + planner.losses({KEYS[0]: 11}, bounds))
    assert "offsets 2 to 4 are gone" in text
    assert "queue t/b/1 is gone" in text
    assert "offset 11 is beyond the log's end 10" in text
    work, lost = planner.ranges({KEYS[0]: 2}, {KEYS[0]: 12, KEYS[2]: 4}, bounds)
    assert [(one.start, one.end) for one in work] == [(5, 10)]
    assert len(lost) == 3


def test_resolve() -> None:
    bounds = {KEYS[0]: Bounds(0, 5, 10, 7), KEYS[1]: Bounds(1, 0, 3)}
    assert planner.resolve(StartingPoint(LATEST, {}), bounds) == {KEYS[0]: 10, KEYS[1]: 3}
    named = {QueueName("t", None, 0): 8, QueueName("t", "b", 1): EARLIEST}
    assert planner.resolve(StartingPoint(LATEST, named), bounds) == {KEYS[0]: 8, KEYS[1]: 0}


def test_few_rows_wait_for_more_but_not_for_ever() -> None:
    def remaining(waiting: int, since_ms: float | None) -> int:
        return planner.remaining_delay_ms(waiting, 10, since_ms, 1000)

    assert planner.remaining_delay_ms(1, None, 0.0, 1000) == 0
    assert remaining(1, None) == 0, "the first batch comes at once"
    assert remaining(10, 5.0) == 0
    assert remaining(9, 400.5) == 600
    assert remaining(9, 1000.0) == remaining(9, 5000.0) == 0


STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 30), min_size=3, max_size=3),  # messages stored in each queue
        st.lists(st.integers(0, 20), min_size=3, max_size=3),  # messages retention takes from each
        st.none() | st.integers(1, 40),  # maxOffsetsPerTrigger
        st.integers(1, 3),  # queues that exist so far
    ),
    max_size=8,
)


@given(STEPS, st.integers(1, 4), st.none() | st.integers(1, 9))
def test_growth_and_retention_under_a_query(
    steps: list[tuple[list[int], list[int], int | None, int]], cores: int, records_max: int | None
) -> None:
    """Every offset is read exactly once, or named as lost, whatever happens between two batches and within one."""
    lows, highs, queues = [0, 0, 0], [0, 0, 0], 0
    start: dict[QueueKey, int] = {}
    read: list[tuple[QueueKey, int]] = []
    lost: list[tuple[QueueKey, int]] = []

    def bounds() -> dict[QueueKey, Bounds]:
        return {KEYS[n]: Bounds(n, lows[n], highs[n]) for n in range(queues)}

    for stored, expired, rows_max, exist in steps:
        queues = max(queues, exist)
        for number in range(queues):
            highs[number] += stored[number]
        ends = planner.advance(start, bounds(), rows_max=rows_max)
        for number in range(queues):
            lows[number] = min(lows[number] + expired[number], highs[number])
        work, sentences = planner.ranges(start, ends, bounds())
        pieces = [piece for task in planner.tasks(work, cores=cores, records_max=records_max) for piece in task]
        read += [(piece.key, offset) for piece in pieces for offset in range(piece.start, piece.end)]
        for sentence in sentences:
            found = re.fullmatch(r"queue t/b/(\d): offsets (\d+) to (\d+) are gone, it begins at \d+ now", sentence)
            assert found is not None, sentence
            key = KEYS[int(found[1])]
            last = min(int(found[3]), ends[key] - 1)
            lost += [(key, offset) for offset in range(int(found[2]), last + 1)]
        start = ends
    assert len(set(read)) == len(read)
    assert not set(read) & set(lost)
    assert set(read) | set(lost) == {(key, offset) for key, end in start.items() for offset in range(end)}
