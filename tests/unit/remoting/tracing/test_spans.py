"""Spans wait in a bounded queue; traces begin as often as the ratio says, wherever the runs are cut."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.tracing.context import TraceContext
from remoting.tracing.spans import SpanKind, Tracer, fresh_root, random_number

CONTEXT = TraceContext(7, 8, True, "a=1")


def test_a_full_queue_drops_and_counts() -> None:
    tracer = Tracer(queue_spans_max=2)
    ids = [tracer.note(CONTEXT, f"publish {number}", SpanKind.SERVER, 5, 4, {}) for number in range(3)]
    assert (tracer.recorded, tracer.dropped, len(tracer)) == (3, 1, 2)
    first, second = tracer.take(10)
    assert (first.name, first.trace_id, first.parent_id, first.state) == ("publish 0", 7, 8, "a=1")
    assert first.end_ns == first.start_ns == 5
    assert first.span_id != second.span_id
    assert ids == [first.span_id, second.span_id, 0]
    assert tracer.take(10) == []


def test_what_is_not_sampled_is_nothing() -> None:
    tracer = Tracer()
    assert tracer.note(CONTEXT._replace(sampled=False), "publish", SpanKind.SERVER, 1, 2, {}) == 0
    assert (tracer.recorded, len(tracer), tracer.begins) == (0, 0, False)


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(0, 2**32))
def test_runs_cut_differently_begin_the_same_traces(cuts: list[int], seed: int) -> None:
    def begun(runs: list[int]) -> list[int]:
        draw = random.Random(seed)
        tracer = Tracer(root_ratio=0.2, draw=lambda: 1.0 - draw.random())
        found, first = [], 0
        for count in runs:
            found += [first + number for number in tracer.begin(count)]
            first += count
        return found

    assert begun(cuts) == begun([sum(cuts)])


@pytest.mark.parametrize("ratio", [0.01, 0.5, 1.0])
def test_the_ratio_is_kept(ratio: float) -> None:
    draw = random.Random(5)
    tracer = Tracer(root_ratio=ratio, draw=lambda: 1.0 - draw.random())
    assert len(tracer.begin(100_000)) == pytest.approx(100_000 * ratio, rel=0.1)
    assert tracer.begins


def test_numbers_and_roots() -> None:
    assert all(0 < random_number() <= 1 for _ in range(100))
    assert fresh_root().sampled
    assert fresh_root().trace_id != fresh_root().trace_id
