"""Three stores of a group, walked by a seed: they end with the same bytes, and with the state of these bytes alone.

LIGHTMQ_WALKS=500 makes more of them, LIGHTMQ_WALK_FIRST=77 begins with that seed; a walk that fails names its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remoting.native import core as native
from tests.sim.replica_walk import Walk

WALKS = int(os.environ.get("LIGHTMQ_WALKS", "12"))
FIRST = int(os.environ.get("LIGHTMQ_WALK_FIRST", "1"))
STEPS = 100
MEMORY = Path("/dev/shm")


@pytest.mark.parametrize("twin", ["pure", "compiled"])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + WALKS))
def test_whatever_happens_the_nodes_agree(
    twin: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends, parts of any size, flushes, kills that lose what was not flushed, elections, cuts, restarts."""
    if twin == "compiled" and native.choice.name != "compiled":
        pytest.skip(f"no compiled twin: {native.choice.reason}")
    monkeypatch.setattr(native, "core", native.pure_core() if twin == "pure" else native.compiled_core())
    Walk(tmp_path, seed).run(STEPS)
