"""Schedules with the shipped store on disks that forget: no rule is broken, and a seed determines everything."""

from __future__ import annotations

import pytest

from tests.sim.cluster.__main__ import told
from tests.sim.cluster.broker import Build
from tests.sim.cluster.platter import Disks
from tests.sim.cluster.schedule import run
from tests.sim.cluster.store_plants import PLANTS
from tests.sim.cluster.story import Story
from tests.sim.cluster.test_schedules import in_a_process

STORED, ELECTING = Build(is_stored=True), Build(is_stored=True, elects=True)
SCHEDULES = 16
SCHEDULES_MAX = 60


@pytest.mark.parametrize("build", [STORED, ELECTING], ids=["controllers", "elects"])
def test_no_schedule_breaks_a_rule_with_the_shipped_store(build):
    """Segments roll, runs merge, snapshots are written, and logs expire meanwhile."""
    results = [run(seed, build) for seed in range(SCHEDULES)]
    assert [told(each, None, build) for each in results if each.rule] == []
    assert sum(each.acknowledged for each in results) > 20 * SCHEDULES, "too little to prove anything"
    assert sum(each.epochs for each in results) > 2 * SCHEDULES
    assert sum(each.pulled for each in results) > 10 * SCHEDULES


@pytest.mark.parametrize("seed", [1, 8])
def test_a_seed_replays_its_history_with_the_shipped_store(seed):
    """The same events in the same order, in another process too."""
    first, again, other = (run(each, STORED, trace=True) for each in (seed, seed, seed + 20))
    assert first.lines == again.lines
    assert first.lines != other.lines
    assert in_a_process(seed, "Build(is_stored=True)", hash_seed=0) == list(first.lines)


@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_bug_planted_in_the_store_is_caught(name):
    """The disk that forgets and the checkers judge the shipped store, not a model of it."""
    results = (run(seed, PLANTS[name]) for seed in range(SCHEDULES_MAX))
    caught = next((each for each in results if each.rule), None)
    assert caught is not None, f"no schedule of {SCHEDULES_MAX} caught {name}"
    print(f"{name}: seed {caught.seed}: {caught.detail}")


@pytest.mark.parametrize("build", [STORED, ELECTING], ids=["controllers", "elects"])
def test_rot_is_found_and_the_record_is_taken_from_the_master_again(build):
    """By the reading of the log that follows a start; meanwhile the replica is not counted."""
    with Disks() as disks:
        story = Story(build, disks=disks)
        story.settle(1, 2, 3)
        story.append(story.master, 30)
        story.settle(1, 2, 3)
        story.run(1_000)
        replica = story.others(story.master)[0]
        replica.damaged(replica.log.may_rot()[10])
        replica.crash(power=False)
        replica.start()
        story.until(lambda: not replica.safe)
        story.until(lambda: replica.damage is None)
        story.end()
        wanted = ("log_damage", "has lost what is behind", "damaged_log_given_up")
        lines = [line for line in story.world.lines or () if any(each in line for each in wanted)]
        assert [next(each for each in wanted if each in line) for line in lines] == list(wanted)
