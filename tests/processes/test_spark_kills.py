"""Driver, Python workers, executors and the brokers at both ends of a pipeline are killed; every row counts once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import spark_soak
from tests.processes.spark_kills import kinds, rounds
from tests.processes.spark_pipeline import Pipeline

pytestmark = [pytest.mark.processes, pytest.mark.spark]


@pytest.mark.parametrize(
    ("master", "kills"),
    [
        pytest.param("local[2,4]", 4, marks=pytest.mark.timeout(900)),
        pytest.param("local[2,4]", 24, marks=[pytest.mark.slow, pytest.mark.timeout(3_600)]),
        pytest.param("local-cluster[2,1,1024]", 25, marks=[pytest.mark.slow, pytest.mark.timeout(3_600)]),
    ],
)
def test_every_row_once_whatever_is_killed(tmp_path: Path, master: str, kills: int) -> None:
    pipeline = Pipeline(tmp_path, master)
    try:
        pipeline.start()
        done = rounds(pipeline, kills, kills, master)
        pipeline.account()
    finally:
        pipeline.close()
    assert set(done) == set(kinds(master))


def test_growing_parts_are_named() -> None:
    """A part that was larger in the last third than in the middle one, beyond the tolerance."""
    samples = [{"flat": 50_000, "leak": 50_000 + 10_000 * n} for n in range(9)]
    found = spark_soak.growth(samples)
    assert found == {"flat": (50_000, 50_000), "leak": (90_000, 120_000)}
    assert [part for part, both in found.items() if spark_soak.grows(*both)] == ["leak"]
