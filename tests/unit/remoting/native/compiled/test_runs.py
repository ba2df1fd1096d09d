"""The compiled look-up's own dangers: directories that point outside the columns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.native import core as native
from remoting.native.vectors import column, empty
from tests.sim.index_entries import ring_of
from tests.unit.remoting.native.reference.test_runs import ENTRIES, Entry, columns_of, run_of, values_of


@pytest.fixture(autouse=True)
def _compiled(twin: str) -> None:
    if twin != "compiled":
        pytest.skip("about the compiled twin")


@settings(deadline=None)
@given(st.lists(ENTRIES, min_size=1, max_size=4), st.integers(1, 200))
def test_twins_agree(parts: list[list[Entry]], first: int) -> None:
    """Sorted part by part and merged: the same numbers of the same kinds."""
    columns = columns_of([entry for part in parts for entry in part])
    made: dict[str, list[dict[str, list[int] | None]]] = {}
    for core in (native.pure_core(), native.compiled_core()):
        runs, at = [], 0
        for part in parts:
            piece = [column[at : at + len(part)] for column in columns]
            qid, slots = ring_of(*piece, capacity=len(part) + 3, first=first)
            runs.append(core.sort_entries(qid, slots, first, first + len(part)))
            at += len(part)
        made[core.name] = [values_of(data) for data in (*runs, core.make_run_table(runs).merge())]
    assert made["pure"] == made["compiled"]


@pytest.mark.parametrize(("first", "end"), [(0, 5), (3, 2), (-1, 2), (9, 14)])
def test_numbers_outside_the_ring_are_refused(first: int, end: int) -> None:
    """More entries than slots, or fewer than none."""
    qid, slots = ring_of(*columns_of([(1, 1, 8)] * 4))
    with pytest.raises(AssertionError):
        native.core.sort_entries(qid, slots, first, end)


def test_arrays_of_another_kind_are_refused() -> None:
    """Before anything is read from them."""
    qid, slots = ring_of(*columns_of([(1, 1, 8)] * 4))
    for wrong in (
        (qid.astype("q"), slots), (qid[:3], slots), (qid, slots[:96]), (qid[::2], slots[:64]),
        (qid, memoryview(bytearray(32))), (qid.astype("Q"), slots),
    ):  # fmt: skip
        with pytest.raises(AssertionError):
            native.core.sort_entries(*wrong, 0, 1)


@pytest.fixture(autouse=True)
def _compiled(twin: str) -> None:
    if twin != "compiled":
        pytest.skip("about the compiled twin")


@pytest.mark.parametrize("starts", [[0, 3], [2, 2], [1, 0]])
def test_a_directory_that_points_outside_is_refused(starts: list[int]) -> None:
    """Two entries, and a directory with another number."""
    run = run_of((1, [0, 1], 2))
    run.starts = column(starts, "I")
    table = native.core.make_run_table([run])
    with pytest.raises(AssertionError):
        table.find(1, 0, 9)
    with pytest.raises(AssertionError):
        table.first_at(1, 0)


def test_a_first_offset_that_does_not_fit_is_refused() -> None:
    """More offsets than entries, and offsets that do not rise."""
    run = run_of((1, [0, 1], 9))
    with pytest.raises(AssertionError):
        native.core.make_run_table([run]).find(1, 5, 9)
    counted = run_of((1, [4, 5], 9), counts=True)
    counted.first_offsets = column([0], "q")
    with pytest.raises(AssertionError):
        native.core.make_run_table([counted]).find(1, 1, 9)


@pytest.mark.parametrize("name", ["queues", "positions", "tags"])
def test_columns_of_another_kind_or_length_are_refused(name: str) -> None:
    """Before anything is read from them."""
    for wrong in (empty(2, "H"), empty(9, getattr(run_of((1, [0], 1)), name).kind)):
        run = run_of((1, [0, 1], 2))
        setattr(run, name, wrong)
        with pytest.raises(AssertionError):
            native.core.make_run_table([run])


@pytest.mark.parametrize("starts", [[0, 1, 3], [0, 0, 2], [1, 1, 2], [1, 2, 2], [0, 2, 1]])
def test_an_inconsistent_directory_is_not_merged(starts: list[int]) -> None:
    """Before anything is copied."""
    run = run_of((1, [0], 1), (4, [0], 1))
    run.starts = column(starts, "I")
    table = native.core.make_run_table([run_of((1, [0], 1)), run])
    with pytest.raises(AssertionError):
        table.merge()
