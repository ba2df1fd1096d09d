"""The compiled order of what waits (`remoting.native.compiled.delays`) is that of the pure twin, whatever is done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.native import core as native
from remoting.native.contracts import SPAN_S
from remoting.native.vectors import column, empty

pytestmark = pytest.mark.skipif(native.choice.name != "compiled", reason=f"no compiled twin: {native.choice.reason}")

keys = st.tuples(st.integers(-1, 60), st.integers(-1, 60))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 60), max_size=30), st.integers(0, 10), keys, keys),
        st.tuples(st.just("take"), st.integers(0, 20), st.integers(0, 10), keys, keys),
        st.tuples(st.just("keep"), st.integers(0, 20)),
        st.tuples(st.just("put back")),
        st.tuples(st.just("clear")),
    ),
    max_size=25,
)


@given(steps)
def test_both_heaps_hand_out_the_same_messages(done: list[tuple]) -> None:
    heaps = [native.pure_core().make_due_heap(), native.compiled_core().make_due_heap()]
    taken = [(empty(0, "q"), empty(0, "q"), empty(0, "q"))] * 2
    offset = 0
    for step, *values in done:
        if step == "add":
            dues, floor, mark, limit = values
            known = column(dues, "q")
            for heap in heaps:
                heap.add(offset, known, known * 7 + offset, floor, mark, limit)
            offset += len(dues)
        elif step == "take":
            taken = [heap.take(*values) for heap in heaps]
            assert [one.tolist() for one in taken[0]] == [one.tolist() for one in taken[1]]
        elif step == "keep" and len(heaps[0]) > values[0]:
            assert len({heap.keep(values[0]) for heap in heaps}) == 1
        elif step == "put back":
            for heap, entries in zip(heaps, taken, strict=True):
                heap.put_back(entries)
            taken = [(empty(0, "q"), empty(0, "q"), empty(0, "q"))] * 2
        elif step == "clear":
            for heap in heaps:
                heap.clear()
        assert len(heaps[0]) == len(heaps[1])
        assert heaps[0].first() == heaps[1].first()


@given(st.lists(st.tuples(st.integers(0, SPAN_S - 1), st.integers(1, 5)), max_size=20))
def test_both_spans_count_alike(added: list[tuple[int, int]]) -> None:
    spans = [core.make_span((1,)) for core in (native.pure_core(), native.compiled_core())]
    for second, count in added:
        for span in spans:
            span.add(second, count)
        assert spans[0].count(second) == spans[1].count(second)
        assert spans[0].fullest() == spans[1].fullest()
