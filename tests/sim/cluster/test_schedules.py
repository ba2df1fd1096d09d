"""A thousand schedules keep every rule, and a seed determines everything."""

from __future__ import annotations

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


@pytest.mark.parametrize("part", range(2))
def test_no_schedule_breaks_a_rule_where_what_is_written_counts(part):
    """As long as a power cut leaves the memory of one broker in sync."""
    results = [run(seed, Build(is_async=True)) for seed in range(part * 100, part * 100 + 100)]
    assert [told(each, None, is_async=True) for each in results if each.rule] == []
    assert sum(each.acknowledged for each in results) > 2_000


def test_a_seed_replays_its_history():
    """The same seed gives the same events in the same order; another one does not."""
    first, again, other = run(7, trace=True), run(7, trace=True), run(8, trace=True)
    assert first.lines == again.lines
    assert first.events == again.events
    assert first.lines != other.lines


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
