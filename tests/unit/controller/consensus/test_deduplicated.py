"""A repeated command is answered with what it did the first time, before and after a snapshot."""

from __future__ import annotations

import msgspec
import pytest

from controller.consensus import engine
from controller.consensus.engine import DeduplicatedMachine, Envelope
from controller.replicas.group import ApplyBrokerId, Barrier, ElectMaster, Live, encode
from controller.replicas.machine import ReplicaMachine
from tests.support.replicas import register


def envelope(client, request, command):
    return msgspec.msgpack.encode(Envelope(client, request, encode(command)))


@pytest.fixture
def machine():
    """A machine with one registered replica."""
    made = DeduplicatedMachine(ReplicaMachine())
    made.apply(envelope("c", 1, ApplyBrokerId("C", "g", 1, "x")))
    made.apply(envelope("c", 2, register(1)))
    return made


def test_a_repeated_command_is_applied_once(machine):
    """Its answer is that of the first time, also from a controller that restored a snapshot."""
    elect = envelope("c", 3, ElectMaster("C", "g", {1: Live()}, 1))
    first = machine.apply(elect)
    assert first.code == 0
    assert machine.apply(elect) == first
    assert machine.machine.groups["g"].master_epoch == 1
    restored = DeduplicatedMachine(ReplicaMachine())
    restored.restore(machine.encode())
    assert restored.apply(elect) == first
    assert restored.encode() == machine.encode()
    assert machine.apply(envelope("d", 3, ElectMaster("C", "g", {1: Live()}, 1))).code == 2011


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", msgspec.msgpack.encode(["c", 1, b"\x80"]), msgspec.msgpack.encode(["", 1, b""])]
)
def test_rubbish_is_an_answer(machine, data):
    """It never raises and changes nothing."""
    before = machine.encode()
    assert machine.apply(data).code == 2005
    assert machine.encode() == before


def test_a_fault_of_ours_is_an_answer(machine, monkeypatch):
    """The log continues after it."""
    monkeypatch.setattr(machine.machine, "apply", lambda _command: 1 // 0)
    outcome = machine.apply(envelope("c", 9, register(1)))
    assert (outcome.code, "ZeroDivisionError" in outcome.remark, machine.faults) == (1, True, 1)


def test_the_memory_is_bounded(machine, monkeypatch):
    """Old answers and silent clients are forgotten; barriers are not remembered at all."""
    monkeypatch.setattr(engine, "ANSWERS_MAX", 2)
    monkeypatch.setattr(engine, "CLIENTS_MAX", 2)
    for request in range(10, 20):
        machine.apply(envelope("a", request, register(1)))
    machine.apply(envelope("c", 20, register(1)))
    machine.apply(envelope("b", 1, register(1)))
    machine.apply(envelope("q", 1, Barrier()))
    state = msgspec.msgpack.decode(machine.encode(), type=engine.MachineSnapshot)
    assert {client: list(answers) for client, answers in state.answers.items()} == {"c": [2, 20], "b": [1]}
