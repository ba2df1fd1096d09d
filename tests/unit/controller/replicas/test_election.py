"""Who is chosen among candidates that differ in one thing, and the order in which things count."""

from __future__ import annotations

import pytest

from controller.replicas.commands import ElectMaster, Live
from controller.replicas.group import Replica, ReplicaGroup
from controller.replicas.machine import choose

GROUP = ReplicaGroup(
    "C", "g", {each: Replica("x", f"h:{each}") for each in (1, 2, 3)}, 5, master_epoch=1, in_sync=(1, 2, 3)
)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Live(2, 0, 9), Live(1, 2**62, 0)),
        (Live(2, 2**62, 9), Live(2, 2**62 - 1, 0)),
        (Live(2, 5, 1), Live(2, 5, 2)),
        (Live(2, 5, 1), Live(2, 5)),
    ],
)
def test_the_best_log_wins(first, second):
    """Epoch, then end, then the lower priority; large ends are compared as they are."""
    assert choose(GROUP, ElectMaster("C", "g", {3: first, 1: second})).master == 3
    assert choose(GROUP, ElectMaster("C", "g", {1: first, 3: second})).master == 1


def test_equal_ones_fall_to_the_lower_id():
    """So that every controller chooses the same."""
    assert choose(GROUP, ElectMaster("C", "g", {3: Live(), 2: Live()})).master == 2


def test_an_id_without_registration_is_no_candidate():
    """It took an id and never came."""
    group = ReplicaGroup("C", "g", {1: Replica("x"), 2: Replica("x", "h:2")}, 3, master_epoch=1, in_sync=(1, 2))
    assert choose(group, ElectMaster("C", "g", {1: Live(9), 2: Live()})).master == 2
    assert choose(group, ElectMaster("C", "g", {1: Live(9)}, 1)).code == 2010


def test_designating_nobody_in_particular_changes_nothing():
    """Without an id there is nobody to designate."""
    group = ReplicaGroup("C", "g", GROUP.replicas, 5, master=1, master_epoch=1, in_sync=(1, 2))
    assert choose(group, ElectMaster("C", "g", {1: Live(), 2: Live()}, None, designated=True)).code == 2011
    assert choose(group, ElectMaster("C", "g", {2: Live()}, None, designated=True)).code == 2004
