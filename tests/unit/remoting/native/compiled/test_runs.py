"""The compiled look-up's own dangers: directories that point outside the columns."""

from __future__ import annotations

import numpy as np
import pytest

from remoting.native import core as native
from tests.unit.remoting.native.reference.test_runs import run_of


@pytest.fixture(autouse=True)
def _compiled(twin: str) -> None:
    if twin != "compiled":
        pytest.skip("about the compiled twin")


@pytest.mark.parametrize("starts", [[0, 3], [2, 2], [1, 0]])
def test_a_directory_that_points_outside_is_refused(starts: list[int]) -> None:
    """Two entries, and a directory that says otherwise."""
    run = run_of((1, [0, 1], 2))
    run.starts = np.array(starts, "<u4")
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
    counted.first_offsets = np.array([0], "<i8")
    with pytest.raises(AssertionError):
        native.core.make_run_table([counted]).find(1, 1, 9)


@pytest.mark.parametrize("column", ["queues", "positions", "tags"])
def test_columns_of_another_kind_or_length_are_refused(column: str) -> None:
    """Before anything is read from them."""
    for wrong in (np.zeros(2, "<i2"), np.zeros(9, getattr(run_of((1, [0], 1)), column).dtype)):
        run = run_of((1, [0, 1], 2))
        setattr(run, column, wrong)
        with pytest.raises(AssertionError):
            native.core.make_run_table([run])


@pytest.mark.parametrize("starts", [[0, 1, 3], [0, 0, 2], [1, 1, 2], [1, 2, 2], [0, 2, 1]])
def test_a_directory_that_does_not_add_up_is_not_merged(starts: list[int]) -> None:
    """Before anything is copied."""
    run = run_of((1, [0], 1), (4, [0], 1))
    run.starts = np.array(starts, "<u4")
    table = native.core.make_run_table([run_of((1, [0], 1)), run])
    with pytest.raises(AssertionError):
        table.merge()
