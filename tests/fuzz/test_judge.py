"""The judge itself: it accepts what is right and detects what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.judge import Judge
from tests.fuzz.victim import report
from tests.fuzz.workload import operation
from tests.sim.stores import StoreBench


def told(directory: Path, workload: int = 5, count: int = 40) -> dict:
    """What a sound store reports after `count` operations."""
    bench = StoreBench(directory)
    for number in range(count):
        done = operation(number, workload)
        ids = dict(zip(done.names(), bench.store.queues.open_all(done.names()), strict=True))
        bench.store.append(*done.messages(number, ids), changes=done.changes)
    bench.settle()
    bench.reopen()
    found = report(bench.store)
    bench.close()
    return {**found, "queues": {str(key): value for key, value in found["queues"].items()}}


def test_sound(tmp_path: Path) -> None:
    """Every check passes."""
    found = told(tmp_path / "data")
    judge = Judge(5)
    judge.check(tmp_path / "data", found, 39)
    assert judge.records > 40
    with pytest.raises(AssertionError, match="epoch"):
        judge.check(tmp_path / "data", found, 39)


@pytest.mark.parametrize("lie", ["lost", "index", "state", "session", "offset"])
def test_wrong_reports_are_detected(tmp_path: Path, lie: str) -> None:
    """Each kind of wrong answer is an error."""
    found = told(tmp_path / "data")
    queue = next(iter(found["queues"].values()))
    if lie == "index":
        queue[4][0] += 8
    elif lie == "offset":
        queue[3] += 1
    elif lie == "state":
        found["state"].pop()
    elif lie == "session":
        found["retained"]["r/0"] = 1
    with pytest.raises(AssertionError):
        Judge(5).check(tmp_path / "data", found, 40 if lie == "lost" else 39)
