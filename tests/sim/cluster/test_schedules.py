"""A thousand schedules keep every rule, and a seed determines everything."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sim.cluster.__main__ import main, told
from tests.sim.cluster.broker import Build
from tests.sim.cluster.plants import PLANTS
from tests.sim.cluster.schedule import run

SCHEDULES, PARTS = 1_000, 10


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_rule(part):
    """Whatever fails, nothing acknowledged is lost, nothing shown changes, and all replicas are equal at the end."""
    size = SCHEDULES // PARTS
    results = [run(seed) for seed in range(part * size, (part + 1) * size)]
    assert [told(each, None) for each in results if each.rule] == []
    assert sum(each.acknowledged for each in results) > 20 * size, "too little was acknowledged to prove anything"
    assert sum(each.faults for each in results) > 5 * size
    assert sum(each.epochs for each in results) > 2 * size
    assert sum(each.pulled for each in results) > 10 * size


@pytest.mark.parametrize("part", range(2))
def test_no_schedule_breaks_a_rule_where_what_is_written_counts(part):
    """As long as a power cut leaves the memory of one broker in sync."""
    results = [run(seed, Build(is_async=True)) for seed in range(part * 100, part * 100 + 100)]
    assert [told(each, None, Build(is_async=True)) for each in results if each.rule] == []
    assert sum(each.acknowledged for each in results) > 2_000


@pytest.mark.parametrize("seed", [1, 7, 8, 11])
def test_a_seed_replays_its_history(seed):
    """The same seed gives the same events in the same order, wherever objects lie in memory and whatever they hash to;
    another seed does not."""
    first, again, other = run(seed, trace=True), run(seed, trace=True), run(seed + 20, trace=True)
    assert first.lines == again.lines
    assert first.events == again.events
    assert first.lines != other.lines
    assert in_a_process(seed, hash_seed=0) == in_a_process(seed, hash_seed=1) == list(first.lines)


def in_a_process(seed: int, build: str = "Build()", *, hash_seed: int) -> list[str]:
    """The events of a schedule in a process of its own, whose strings have other hashes."""
    told = f"""
from tests.sim.cluster.broker import Build
from tests.sim.cluster.schedule import run
print(*run({seed}, {build}, trace=True).lines, sep="\\n")
"""
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run([sys.executable, "-c", told], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_command_prints_the_seed_and_how_to_replay_it(capsys):
    """With a planted bug it stops at the first violation; without one it counts."""
    assert main(["--plant", "acknowledges-at-write", "--schedules", "50"]) == 0
    said = capsys.readouterr().out
    assert "replay: python -m tests.sim.cluster --schedules 1 --seed" in said
    assert "--plant acknowledges-at-write" in said
    assert main(["--schedules", "2", "--seed", "3"]) == 0
    assert "2 schedules from seed 3: 0 violations" in capsys.readouterr().out
    assert main(["--plant", "stale-controller", "--schedules", "0"]) == 1
    assert len(PLANTS) >= 15
