"""Members that change among all faults: no rule is broken, and each rule that is left out is missed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.raft.__main__ import run_in_memory, told
from tests.sim.raft.member_plants import PLANTS

SCHEDULES = 30
FOUND = {
    "two-changes-at-once": 3,
    "answered-before-committed": 0,
    "learners-count": 7,
    "emptied-member-votes": 6,
    "emptied-directories-are-admitted": 7,
    "removed-members-elect": 19,
    "turned-away-too-early": 45,
}
"""The seed that showed each bug when it was planted first."""
TRIED = 60


def test_no_schedule_breaks_a_rule():
    """Controllers are added, removed, replaced and emptied; in the end three agree, and nothing answered is lost."""
    results = [run_in_memory(seed, engine="dledger", changing=True) for seed in range(SCHEDULES)]
    assert [told(each, None, changing=True) for each in results if each.rule] == []
    faults = sum((each.faults for each in results), Counter())
    assert min(faults[each] for each in ("member added", "member removed", "wiped")) > SCHEDULES // 3
    assert sum(each.answered for each in results) > 10 * SCHEDULES


@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_planted_bug_is_caught(name):
    """By the seed that showed it first, or one of the next ones."""
    for seed in range(FOUND[name], FOUND[name] + TRIED):
        result = run_in_memory(seed, PLANTS[name], engine="dledger", changing=True)
        if result.rule:
            return
    pytest.fail(f"no schedule of {TRIED} caught {name}")
