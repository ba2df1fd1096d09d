"""Commands survive the log as bytes; what is no command is a violation."""

from __future__ import annotations

import pytest

from controller.replicas.commands import (
    AlterSyncStateSet,
    ApplyBrokerId,
    Barrier,
    CleanReplicas,
    ElectMaster,
    Live,
    RegisterReplica,
    decode,
    encode,
)
from remoting.protocol.errors import RemoteViolation

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
    """The same value comes out."""
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
def test_what_is_no_command(data):
    """Rubbish, empty names, ids out of range and deep nesting are violations, nothing else."""
    with pytest.raises(RemoteViolation):
        decode(data)
