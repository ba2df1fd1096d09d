"""The port answers in the present role; connections end with it."""

from __future__ import annotations

import pytest

from broker.roles.gate import RoleGate, peers_closer
from remoting import inprocess
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.server.access import Access
from remoting.transport.failures import ConnectionLost, not_master


class Port:
    """A gate and the connections to it."""

    def __init__(self) -> None:
        self.peers: list = []
        always = {Code.NOTIFY_BROKER_ROLE_CHANGED: lambda _peer, command: command.reply(body=b"always")}
        self.gate = RoleGate(always, Access(), peers_closer(lambda: self.peers))
        self.refusal: Refused | None = None

    def connect(self) -> inprocess.InProcessConnection:
        connection = inprocess.connect(self.gate)
        self.peers.append(connection.peer)
        return connection

    def serve(self, epoch: int) -> None:
        def answer(_peer, command: Command) -> Command:
            return command.reply(body=b"served")

        table = {Code.APPEND_MANY: answer, Code.MULTI_PULL: answer}
        self.gate.serve(table, epoch, lambda: self.refusal)


async def test_a_fenced_broker_answers_nothing_but_what_is_always_answered() -> None:
    """Private codes get NOT_MASTER, RocketMQ's own the code its clients retry on; both say what is known."""
    port = Port()
    connection = port.connect()
    private = await connection.request(Command(Code.MULTI_PULL))
    assert (private.code, private.fields) == (9101, {"masterAddress": "", "masterEpoch": ""})
    port.gate.refuse("h:1", 7)
    send = await connection.request(Command(Code.SEND_MESSAGE_V2))
    assert send.code == 14
    for answer in (send, await connection.request(Command(Code.APPEND_MANY))):
        refusal = not_master(answer)
        assert refusal is not None
        assert (refusal.address, refusal.epoch, refusal.is_begun) == ("h:1", 7, False)
    assert (await connection.request(Command(Code.NOTIFY_BROKER_ROLE_CHANGED))).body == b"always"
    assert (port.gate.refused, port.gate.serving) == (3, False)
    pop = await connection.request(Command(Code.POP_MESSAGE))
    assert pop.code == 14


async def test_roles_change_and_connections_end_with_them() -> None:
    """What was not answered fails; who comes back is answered in the new role."""
    port = Port()
    first = port.connect()
    assert (await first.request(Command(Code.MULTI_PULL))).code == 9101
    port.serve(8)
    with pytest.raises(ConnectionLost):
        await first.request(Command(Code.MULTI_PULL))
    second = port.connect()
    assert (await second.request(Command(Code.MULTI_PULL))).body == b"served"
    assert (await second.request(Command(4711))).code == 3
    assert port.gate.serving
    port.gate.refuse("h:2", 9)
    with pytest.raises(ConnectionLost):
        await second.request(Command(Code.MULTI_PULL))
    third = port.connect()
    port.gate.refuse("h:3", 10)
    assert (await third.request(Command(Code.MULTI_PULL))).fields["masterAddress"] == "h:3"


async def test_appends_are_admitted_and_reads_are_not_asked() -> None:
    """Too few in sync: messages are refused with what the admission says, everything else goes on."""
    port = Port()
    port.serve(1)
    connection = port.connect()
    assert (await connection.request(Command(Code.APPEND_MANY))).body == b"served"
    port.refusal = Refused(2, "1 of 2 replicas in sync")
    refused = await connection.request(Command(Code.APPEND_MANY))
    assert (refused.code, refused.remark) == (2, "1 of 2 replicas in sync")
    assert (await connection.request(Command(Code.MULTI_PULL))).body == b"served"


async def test_who_may_not_ask_hears_nothing_of_the_master() -> None:
    """Access is checked in every role."""
    gate = RoleGate({}, Access({"key": "secret"}), lambda _reason: None)
    connection = inprocess.connect(gate)
    connection.peer.loopback = False
    assert (await connection.request(Command(Code.MULTI_PULL))).code == 16
