"""The view of a group, and that its rules are really checked."""

from __future__ import annotations

import pytest

from controller.replicas.group import (
    AlterSyncStateSet,
    ApplyBrokerId,
    Barrier,
    CleanReplicas,
    ElectMaster,
    Live,
    RegisterReplica,
    Replica,
    ReplicaGroup,
    check,
    decode,
    encode,
)
from remoting.protocol.errors import RemoteViolation

REPLICAS = {1: Replica("x", "h:1", "ha:1"), 2: Replica("y", "h:2")}


def test_the_view_has_the_master():
    """Addresses of the master where there is one, empty texts where there is none."""
    view = ReplicaGroup("C", "g", REPLICAS, 3, 1, 4, 5, (1, 2)).view()
    assert (view.master_address, view.master_ha_address, view.addresses) == ("h:1", "ha:1", {1: "h:1", 2: "h:2"})
    assert ReplicaGroup("C", "g", REPLICAS, 3).view().master_address == ""


@pytest.mark.parametrize(
    "group",
    [
        ReplicaGroup("C", "g", REPLICAS, 3, master=1, master_epoch=1, in_sync=(2,)),
        ReplicaGroup("C", "g", REPLICAS, 3, in_sync=(3,)),
        ReplicaGroup("C", "g", REPLICAS, 3, in_sync=(2, 1)),
        ReplicaGroup("C", "g", REPLICAS, 2),
        ReplicaGroup("C", "g", REPLICAS, 3, master=1, in_sync=(1,)),
    ],
)
def test_rules_are_checked(group):
    """A state that breaks a rule stops the controller instead of the brokers."""
    with pytest.raises(AssertionError):
        check(group)


COMMANDS = [
    ApplyBrokerId("C", "g", 1, "x"),
    RegisterReplica("C", "g", 1, "h:1", "h:2", "boot", 3, False),
    ElectMaster("C", "g", {1: Live(1, 2, 3)}, 1, True, True),
    AlterSyncStateSet("g", 1, 2, 3, (1, 2), (1, 2, 3)),
    CleanReplicas("C", "g", (1,), (2,), True),
    Barrier(),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_commands_survive_the_log(command):
    """The same value is decoded."""
    assert decode(encode(command)) == command


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x80",
        encode(ApplyBrokerId("C", "", 1, "x")),
        encode(ApplyBrokerId("C", "g", 0, "x")),
        b"\x91" * 99_999,
    ],
)
def test_invalid_commands(data):
    """Arbitrary bytes, empty names, ids out of range and deep nesting are violations, nothing else."""
    with pytest.raises(RemoteViolation):
        decode(data)
