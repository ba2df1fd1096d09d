"""The controllers' state machine under random commands: its rules hold, and a replay gives the same state.

Commands are drawn from few values, so that they meet each other's ids, epochs and boots often.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.replicas.group import (
    AlterSyncStateSet,
    ApplyBrokerId,
    Barrier,
    CleanReplicas,
    ElectMaster,
    Live,
    RegisterReplica,
    check,
    decode,
    encode,
)
from controller.replicas.machine import ReplicaMachine

IDS = st.integers(1, 4)
NAMES = st.sampled_from(["g", "h"])
LIVES = st.dictionaries(IDS, st.builds(Live, st.integers(-1, 6), st.integers(0, 9), st.integers(0, 2)), max_size=4)
MANY = st.lists(IDS, max_size=4).map(tuple)
COMMANDS = st.one_of(
    st.builds(ApplyBrokerId, st.just("C"), NAMES, IDS, st.sampled_from("xy")),
    st.builds(
        RegisterReplica, st.just("C"), NAMES, IDS, st.sampled_from(["h:1", "h:2"]), st.just(""),
        st.sampled_from(["", "a", "b"]), st.integers(-1, 9), st.booleans(),
    ),
    st.builds(ElectMaster, st.just("C"), NAMES, LIVES, st.none() | IDS, st.booleans(), st.just(False)),
    st.builds(AlterSyncStateSet, NAMES, IDS, st.integers(0, 6), st.integers(0, 6), MANY, MANY),
    st.builds(CleanReplicas, st.just("C"), NAMES, MANY, MANY, st.booleans()),
    st.just(Barrier()),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(COMMANDS, max_size=60))
def test_rules_hold_after_every_command(commands):
    """Epochs never fall, one master per epoch, masters are elected from the set, refusals change nothing."""
    machine, masters = ReplicaMachine(), {}
    for command in commands:
        before = machine.groups
        outcome = machine.apply(command)
        for name, group in machine.groups.items():
            check(group)
            old = before.get(name)
            if old is None:
                masters = {key: value for key, value in masters.items() if key[0] != name}
                continue
            assert group.master_epoch >= old.master_epoch
            assert group.set_epoch >= old.set_epoch
            assert group.next_id >= old.next_id
            if group.master is not None:
                assert masters.setdefault((name, group.master_epoch), group.master) == group.master
            if group.master not in (None, old.master) and old.master_epoch > 0:
                assert group.master in old.in_sync
                assert group.in_sync == old.in_sync
            if group.in_sync != old.in_sync:
                assert group.set_epoch > old.set_epoch
        if outcome.code != 0 and not outcome.changed:
            assert machine.groups is before


@settings(max_examples=150, deadline=None)
@given(st.lists(COMMANDS, max_size=40), st.integers(0, 40))
def test_every_controller_reaches_the_same_state(commands, cut):
    """One that applies everything, and one that restored a snapshot and applied the commands after it."""
    whole, late = ReplicaMachine(), ReplicaMachine()
    for number, command in enumerate(commands):
        if number == cut:
            late.restore(whole.encode())
        whole.apply(command)
        if number >= cut:
            late.apply(decode(encode(command)))
    if cut < len(commands):
        assert late.encode() == whole.encode()


@settings(max_examples=300, deadline=None)
@given(st.lists(COMMANDS, max_size=30), LIVES)
def test_an_epoch_is_above_all_that_were_reported(commands, lives):
    """No record of any log known to a controller can have the new master's epoch."""
    machine, told = ReplicaMachine(), {}
    for command in commands:
        before = machine.groups.get(getattr(command, "group", ""))
        outcome = machine.apply(command)
        if isinstance(command, RegisterReplica) and outcome.code == 0:
            told[command.group] = max(told.get(command.group, -1), command.last_epoch)
        if isinstance(command, CleanReplicas) and command.group not in machine.groups:
            told.pop(command.group, None)
        elected = isinstance(command, ElectMaster) and outcome.code == 0
        if elected:
            assert before is not None
            heard = max((live.epoch for live in command.live.values()), default=-1)
            assert outcome.view.master_epoch > max(told.get(command.group, -1), heard, before.master_epoch)
