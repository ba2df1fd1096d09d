"""Every row of the state machine's table, its checks in their order, and what a new boot voids."""

from __future__ import annotations

import msgspec
import pytest

from controller.replicas import machine as machine_module
from controller.replicas.group import (
    AlterSyncStateSet,
    ApplyBrokerId,
    Barrier,
    ChangeUsers,
    CleanReplicas,
    ElectMaster,
    Live,
    OwnPause,
    PlaceMqtt,
    Replica,
    ReplicaGroup,
)
from controller.replicas.machine import ReplicaMachine, choose
from remoting.access.agreement import UserChange, UserState, Version
from remoting.access.users import User
from tests.support.plants import Plant, catches
from tests.support.replicas import alter, elect, live, machine_with, register

MACHINE = "controller.replicas.machine:ReplicaMachine."


def state(machine):
    group = machine.groups["g"]
    return group.master, group.master_epoch, group.set_epoch, group.in_sync


def test_ids_are_given_once():
    """The first is 1, one more is free, a taken one needs the code it was taken with."""
    machine = ReplicaMachine()
    assert machine.next_broker_id("g") == 1
    assert machine.apply(ApplyBrokerId("C", "g", 2, "x")).code == 2014
    assert machine.groups == {}
    assert machine.apply(ApplyBrokerId("C", "g", 1, "x")).code == 0
    assert machine.apply(ApplyBrokerId("C", "g", 1, "x")).code == 0
    assert machine.apply(ApplyBrokerId("C", "g", 1, "y")).code == 2014
    assert machine.next_broker_id("g") == 2
    assert machine.apply(ApplyBrokerId("C", "g", 5, "y")).code == 0
    assert machine.next_broker_id("g") == 6
    assert machine.apply(ApplyBrokerId("D", "g", 6, "z")).code == 2005


def test_numbers_of_groups_and_replicas_are_limited(monkeypatch):
    """One more than the limit is refused with a text that has the limit."""
    monkeypatch.setattr(machine_module, "GROUPS_MAX", 1)
    monkeypatch.setattr(machine_module, "REPLICAS_MAX", 1)
    machine = machine_with(1)
    assert machine.apply(ApplyBrokerId("C", "h", 1, "x")).code == 2014
    assert machine.apply(ApplyBrokerId("C", "g", 2, "x")).code == 2014


def test_registering_needs_an_id():
    """Neither an unknown group nor an id that was never applied for can register."""
    machine = ReplicaMachine()
    assert machine.apply(register(1)).code == 2008
    machine.apply(ApplyBrokerId("C", "g", 1, "x"))
    assert machine.apply(register(2)).code == 2010
    done = machine.apply(register(1))
    assert (done.code, done.changed, done.view.addresses) == (0, True, {1: "h:1"})
    assert not machine.apply(register(1)).changed


def test_the_first_election_is_won_by_the_requester():
    """Epoch 1, a set of one; no broker may begin a history without requesting, registering and being alive."""
    machine = machine_with(1, 2)
    assert machine.apply(elect(live(1, 2))).code == 2012
    assert machine.apply(elect(live(1), 2)).code == 2012
    assert machine.apply(elect(live(1, 2), 9)).code == 2010
    assert machine.apply(elect(live(1, 2), 2)).view.master_address == "h:2"
    assert state(machine) == (2, 1, 1, (2,))
    assert machine.apply(ElectMaster("C", "x", live(1))).code == 2008


def test_a_master_that_lives_stays():
    """A second request is answered with the present master."""
    machine = machine_with(1, 2, in_sync=(1, 2))
    outcome = machine.apply(elect(live(1, 2), 2))
    assert (outcome.code, outcome.view.master, outcome.changed) == (2011, 1, False)


def test_the_set_is_inherited():
    """The successor keeps the old set, dead master included, and gets an epoch above every reported one."""
    machine = machine_with(1, 2, 3, in_sync=(1, 2, 3))
    assert machine.apply(elect(live(r2=(1, 5), r3=(7, 4)))).view.master == 3
    assert state(machine) == (3, 8, 3, (1, 2, 3))
    machine.apply(register(1, epoch=30))
    machine.apply(elect(live(1, 2)))
    assert machine.groups["g"].master_epoch == 31


def test_with_none_in_sync_the_group_has_no_master():
    """Epoch raised once, set kept, not again at the next check."""
    machine = machine_with(1, 2, in_sync=(1,))
    outcome = machine.apply(elect(live(2)))
    assert (outcome.code, outcome.changed, state(machine)) == (2004, True, (None, 2, 1, (1,)))
    again = machine.apply(elect(live(2)))
    assert (again.code, again.changed, state(machine)) == (2004, False, (None, 2, 1, (1,)))
    assert machine.apply(elect(live(1, 2))).view.master == 1


def test_unclean_elections_start_a_set_of_their_own():
    """Only when allowed, and then the elected one stands alone."""
    machine = machine_with(1, 2, in_sync=(1,))
    machine.apply(elect(live(2), unclean=True))
    assert state(machine) == (2, 2, 2, (2,))


def test_designated():
    """A living master is replaced by a designated one that is in sync, and by no other."""
    machine = machine_with(1, 2, 3, in_sync=(1, 2))
    assert machine.apply(elect(live(1, 2, 3), 3, designated=True)).code == 2004
    assert state(machine) == (1, 1, 2, (1, 2))
    assert machine.apply(elect(live(1, 2, 3), 2, designated=True)).view.master == 2
    assert machine.apply(elect(live(1, 2, 3), 2, designated=True)).code == 2011


def test_the_same_set_again_voids_earlier_requests():
    """Its epoch rises, so that a request still in flight has an older one."""
    machine = machine_with(1, 2, in_sync=(1,))
    before = machine.groups["g"]
    assert alter(machine, (1,), (1,)).code == 0
    after = machine.groups["g"]
    assert (after.in_sync, after.set_epoch) == (before.in_sync, before.set_epoch + 1)


@pytest.mark.parametrize(
    ("members", "alive", "wrong", "code"),
    [
        ((1,), (1,), {"master": 2, "master_epoch": 9}, 2002),
        ((1, 2), (1, 2), {"master": 2, "master_epoch": 9}, 2002),
        ((1, 2), (1, 2), {"master_epoch": 9, "set_epoch": 9}, 2000),
        ((1, 2, 9), (1, 2), {"set_epoch": 9}, 2001),
        ((1, 2, 9), (1,), {}, 2003),
        ((1, 2), (1,), {}, 2006),
        ((2,), (1, 2), {}, 2013),
    ],
)
def test_a_changed_set_is_checked_in_order(members, alive, wrong, code):
    """Each check has its code, the earlier one takes precedence, and nothing changes."""
    machine = machine_with(1, 2, in_sync=(1,))
    before = machine.groups
    outcome = alter(machine, members, alive, **wrong)
    assert (outcome.code, outcome.view) == (code, before["g"].view())
    assert machine.groups is before


def test_a_changed_set():
    """The set's epoch rises, and an old report cannot be applied again."""
    machine = machine_with(1, 2, 3, in_sync=(1,))
    assert alter(machine, (2, 1, 2)).view.in_sync == (1, 2)
    assert state(machine) == (1, 1, 2, (1, 2))
    assert alter(machine, (1, 3), set_epoch=1).code == 2001
    assert machine.apply(AlterSyncStateSet("x", 1, 1, 1, (1,), (1,))).code == 2008


def test_who_stays_in_the_set_need_not_be_alive():
    """2 is dead, and 3 streams but cannot reach the controllers: 2 leaves. Out of the set, 3 must be alive to join."""
    machine = machine_with(1, 2, 3, in_sync=(1, 2, 3))
    assert alter(machine, (1, 3), (1,)).view.in_sync == (1, 3)
    assert alter(machine, (1,), (1,)).view.in_sync == (1,)
    assert alter(machine, (1, 3), (1,)).code == 2006
    assert alter(machine, (1, 3), (1, 3)).view.in_sync == (1, 3)


def test_a_master_that_restarts_needs_a_new_epoch():
    """Its mastership ends with the process, even when it is elected again at once."""
    machine = machine_with(1, 2, in_sync=(1, 2))
    outcome = machine.apply(register(1, "b"))
    assert (outcome.view.master, outcome.changed, state(machine)) == (None, True, (None, 2, 2, (1, 2)))
    machine.apply(elect(live(r1=(1, 9), r2=(1, 8)), 1))
    assert state(machine) == (1, 3, 3, (1, 2))


def test_a_boot_that_may_lack_messages_leaves_the_set():
    """Master or replica: removed if others remain."""
    machine = machine_with(1, 2, in_sync=(1, 2))
    machine.apply(register(2, "b", safe=False))
    assert state(machine) == (1, 1, 3, (1,))
    machine = machine_with(1, 2, in_sync=(1, 2))
    machine.apply(register(1, "b", safe=False))
    assert state(machine) == (None, 2, 3, (2,))


def test_a_boot_outside_the_set_voids_proposals_that_include_the_former_boot():
    """The set stays, its epoch does not: a master that does not know of the boot proposes in vain."""
    machine = machine_with(1, 2, in_sync=(1,))
    before = machine.groups["g"].set_epoch
    machine.apply(register(2, "b"))
    assert state(machine) == (1, 1, before + 1, (1,))
    machine.apply(register(2, "b"))
    assert state(machine) == (1, 1, before + 1, (1,))


def test_the_last_in_sync_waits_for_an_operator():
    """Automatic elections stop, a designated one works, and so does an unclean one."""
    for how in ({"asked": 1, "designated": True}, {"unclean": True}):
        machine = machine_with(1, 2, in_sync=(1,))
        machine.apply(register(1, "b", safe=False))
        assert machine.apply(elect(live(1, 2))).code == 2012
        assert machine.apply(elect(live(1), **how)).view.master == 1
        assert not machine.groups["g"].needs_operator


def test_a_group_of_one_continues_by_itself():
    """There is no other copy that an operator could prefer."""
    machine = machine_with(1, in_sync=(1,))
    machine.apply(register(1, "b", safe=False))
    assert machine.apply(elect(live(1), 1)).view.master == 1


def test_cleaning():
    """Living ones only by force; a cleaned master leaves the group without one; the last one removes the group."""
    machine = machine_with(1, 2, 3, in_sync=(1, 2))
    assert machine.apply(CleanReplicas("C", "x", (), ())).code == 2008
    assert machine.apply(CleanReplicas("C", "g", (9,), ())).code == 2009
    assert machine.apply(CleanReplicas("C", "g", (1,), (1,))).code == 2009
    assert machine.apply(CleanReplicas("C", "g", (1,), (1,), forced=True)).code == 0
    assert state(machine) == (None, 2, 3, (2,))
    assert machine.next_broker_id("g") == 4
    gone = machine.apply(CleanReplicas("", "g", (), ()))
    assert (gone.code, gone.view.addresses, machine.groups) == (0, {}, {})


@catches(
    Plant(
        "counts-those-that-are-left",
        MACHINE + "_take",
        "max(group.next_id, command.broker_id + 1)",
        "max(replicas) + 1",
    )
)
def test_the_id_of_a_removed_broker_is_not_given_to_a_new_one():
    """Not even after another removed one has come back with the id that it had."""
    machine = machine_with(1, 2, 3)
    assert machine.apply(CleanReplicas("C", "g", (2, 3), ())).code == 0
    assert machine.apply(ApplyBrokerId("C", "g", 2, "back")).code == 0
    assert machine.next_broker_id("g") == 4


@catches(
    Plant("whoever-comes-last-has-it", MACHINE + "_place_mqtt", "if self.mqtt_group != command.held:", "if False:"),
    Plant("not-in-a-snapshot", MACHINE + "encode", "and not self.mqtt_group", ""),
    Plant("not-of-a-snapshot", MACHINE + "restore", "whole.users, whole.mqtt_group", 'whole.users, ""'),
    Plant("removed-with-its-group", MACHINE + "_clean", "if not left and group.name == self.mqtt_group:", "if False:"),
)
def test_one_group_has_mqtt_and_a_snapshot_says_which():
    """It moves from where it is, never from where it was, and does not end with a group that is removed."""
    machine, restored = machine_with(1), ReplicaMachine()
    assert machine.apply(PlaceMqtt("g")).code == 0
    assert machine.apply(PlaceMqtt("h")).code != 0
    assert machine.apply(PlaceMqtt("h", held="x")).code != 0
    restored.restore(machine.encode())
    assert (machine.mqtt_group, restored.mqtt_group) == ("g", "g")
    assert machine.apply(CleanReplicas("C", "g", (1,), ())).code != 0
    assert machine.apply(PlaceMqtt("h", held="g")).code == 0
    assert machine.apply(CleanReplicas("C", "g", (1,), ())).code == 0
    restored.restore(machine.encode())
    assert restored.mqtt_group == "h"


def test_a_snapshot_is_the_state():
    """Equal after a restore, the same bytes again, and invalid bytes change nothing."""
    machine = machine_with(1, 2, in_sync=(1, 2))
    restored = ReplicaMachine()
    restored.restore(machine.encode())
    assert restored.groups == machine.groups
    assert restored.encode() == machine.encode()
    with pytest.raises(msgspec.MsgspecError):
        restored.restore(b"\xc1")
    assert restored.groups == machine.groups


def test_a_barrier_changes_nothing():
    """It succeeds."""
    machine = machine_with(1)
    before = machine.groups
    assert machine.apply(Barrier()).code == 0
    assert machine.groups is before


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


def test_equal_logs_fall_to_the_lower_id():
    """So that every controller chooses the same."""
    assert choose(GROUP, ElectMaster("C", "g", {3: Live(), 2: Live()})).master == 2


def test_an_id_without_registration_is_no_candidate():
    """It took an id and never registered."""
    group = ReplicaGroup("C", "g", {1: Replica("x"), 2: Replica("x", "h:2")}, 3, master_epoch=1, in_sync=(1, 2))
    assert choose(group, ElectMaster("C", "g", {1: Live(9), 2: Live()})).master == 2
    assert choose(group, ElectMaster("C", "g", {1: Live(9)}, 1)).code == 2010


def test_designating_without_an_id_changes_nothing():
    """There is none to designate."""
    group = ReplicaGroup("C", "g", GROUP.replicas, 5, master=1, master_epoch=1, in_sync=(1, 2))
    assert choose(group, ElectMaster("C", "g", {1: Live(), 2: Live()}, None, designated=True)).code == 2011
    assert choose(group, ElectMaster("C", "g", {2: Live()}, None, designated=True)).code == 2004


def test_a_tick_that_is_much_too_late_was_a_pause() -> None:
    pause = OwnPause(100)
    assert [pause.tick(now_ms) for now_ms in (5_000, 5_100, 5_300, 5_301, 5_602, 5_702)] == [0, 0, 0, 0, 201, 0]
    assert pause.tick(15_802) == 10_000


def test_without_an_interval_nothing_is_a_pause() -> None:
    pause = OwnPause(0)
    assert [pause.tick(now_ms) for now_ms in (0, 1_000_000)] == [0, 0]


def users_of(made_for: Version, *names: str) -> ChangeUsers:
    states = tuple(UserState(name=name, user=User(secret="x")) for name in names)
    return ChangeUsers(UserChange(made_for=made_for, origin="first", states=states))


def test_users_change_for_their_version_only_and_their_number_is_limited(monkeypatch):
    """A refusal changes nothing; the table is in the snapshot, and one of before users is read still."""
    machine = machine_with(1)
    before = machine.encode()
    assert machine.apply(users_of(Version(), "bob", "ann")).code == 0
    held = machine.users
    assert machine.apply(users_of(Version(), "cat")).code == 9102
    monkeypatch.setattr(machine_module, "USERS_MAX", 2)
    assert machine.apply(users_of(held.version, "cat")).code == 2
    assert machine.users is held
    another = ReplicaMachine()
    another.restore(machine.encode())
    assert (another.users, another.groups) == (held, machine.groups)
    assert another.encode() == machine.encode()
    another.restore(before)
    assert (another.users.version, another.groups) == (Version(), machine.groups)
