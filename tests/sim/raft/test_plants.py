"""Every planted bug is caught: the checkers can fail, and each rule that is left out matters."""

from __future__ import annotations

import pytest

from tests.sim.raft import core_plants
from tests.sim.raft.__main__ import run_in_memory
from tests.sim.raft.plants import PLANTS, RARE

SCHEDULES_MAX = 150


ENGINES = {"dledger": core_plants.PLANTS, "pysyncobj": PLANTS}


@pytest.mark.parametrize(("engine", "name"), [(engine, name) for engine in ENGINES for name in sorted(ENGINES[engine])])
def test_a_planted_bug_is_caught(engine, name):
    """Some seed breaks a rule; the search begins at the seed that did when the plant was added."""
    first = RARE.get(name, 0) if engine == "pysyncobj" else 0
    for seed in range(first, first + SCHEDULES_MAX):
        result = run_in_memory(seed, ENGINES[engine][name], engine=engine)
        if result.rule:
            print(f"{name}: seed {seed}: {result.detail}")
            return
    pytest.fail(f"no schedule of {SCHEDULES_MAX} caught {name}")


def test_the_same_seeds_are_clean_without_the_bug():
    """What was caught is the bug, not the seed."""
    assert [run_in_memory(seed).rule for seed in [*range(5), *RARE.values()]] == [""] * (5 + len(RARE))
