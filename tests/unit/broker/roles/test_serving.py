"""What answers requests around an open log: the ports, and the gate of a member of a group."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from broker.config import BrokerConfig, ReplicationConfig
from broker.roles.serving import (
    RoleGate,
    Serving,
    client_host,
    make_server,
    open_vip_port,
    peers_closer,
    readers_impossible,
    upkeep,
    vip_port_of,
)
from broker.store.errors import StoreFailed
from broker.store.log_store import LogStore
from remoting import inprocess
from remoting.client.connection import dial
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.server.router import Access, Router
from remoting.server.server import RemotingServer
from remoting.transport.failures import ConnectionLost, not_master
from runtime.clock import SystemClock
from runtime.faults import FaultPoints
from runtime.logs import get_logger
from runtime.metrics import Registry
from tests.unit.broker.roles.cluster import STORE, until

LOG = get_logger("test")


def make(directory: Path, **options) -> Serving:
    config = BrokerConfig(data_directory=directory, controllers=(), store=STORE, maintain_interval_ms=50, **options)
    loop = asyncio.get_running_loop()
    store = LogStore.open(
        directory, STORE, clock=SystemClock(), faults=FaultPoints(), schedule=loop.call_soon_threadsafe, log=LOG
    )
    return Serving(config, store, SystemClock(), Registry(), LOG, dial)


async def test_it_works_until_it_rests_and_the_log_stays_open(tmp_path: Path) -> None:
    """Upkeep runs meanwhile; a second one on the same log continues the same metrics."""
    serving = make(tmp_path)
    rounds: list[int] = []
    serving.broker.maintain = rounds.append  # type: ignore[method-assign]
    serving.start()
    serving.announce("h", 4711, ())
    serving.tell_address("h", 4712)
    assert serving.broker.tools.identity.address == "h:4712"
    assert RequestCode.APPEND_MANY in serving.handlers
    await until(lambda: len(rounds) > 1)
    await serving.leave()
    await serving.rest()
    seen = len(rounds)
    await asyncio.sleep(0)
    assert len(rounds) == seen
    assert serving.store.refusal is None
    await serving.stop()
    assert serving.store.refusal is not None


async def test_failed_upkeep_is_logged_and_continues(tmp_path: Path) -> None:
    """The next round may succeed."""
    serving = make(tmp_path)
    calls: list[str] = []

    class Log:
        def error(self, event: str, **_fields: object) -> None:
            calls.append(event)

    def fail() -> None:
        raise StoreFailed("for the test")

    await upkeep(serving.store, 1, 0.1, Log(), fail)
    await upkeep(serving.store, 1, 0.1, Log())
    assert calls == ["upkeep_failed"]
    await serving.stop()


@pytest.mark.parametrize(
    ("host", "told"), [("0.0.0.0", "127.0.0.1"), ("", "127.0.0.1"), ("::", "127.0.0.1"), ("h", "h")]
)
def test_clients_get_an_address_they_can_dial(host: str, told: str) -> None:
    """The wildcard address is none."""
    assert client_host(host) == told


async def test_a_port_takes_its_limits_from_the_configuration() -> None:
    """As many connections as configured."""
    server = make_server(BrokerConfig(), Router({}), Access())
    assert await server.start("127.0.0.1", 0) > 0
    await server.stop()
    assert readers_impossible() in ("", "this processor does not keep loads and stores in order")


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


async def test_a_fenced_broker_answers_only_what_is_always_answered() -> None:
    """Private codes get NOT_MASTER, RocketMQ's own the code its clients retry on; both have what is known."""
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
    """What was not answered fails; a client that reconnects is answered in the new role."""
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


async def test_what_comes_during_a_hand_over_is_told_the_next_master() -> None:
    """Nothing of it is begun; what was begun before may still be answered, and what there is no room for is refused."""
    port = Port()
    port.serve(8)
    waiting: list[Command] = []
    port.gate.serve({Code.MULTI_PULL: lambda _peer, command: waiting.append(command), Code.APPEND_MANY: fail}, 8)
    connection = port.connect()
    begun = asyncio.ensure_future(connection.request(Command(Code.MULTI_PULL)))
    await until(lambda: waiting)
    port.gate.suspend()
    assert not port.gate.serving
    held = [asyncio.ensure_future(connection.request(Command(Code.APPEND_MANY))) for _ in range(2)]
    assert (await connection.request(Command(Code.NOTIFY_BROKER_ROLE_CHANGED))).body == b"always"
    connection.peer.send(waiting[0].reply(body=b"served"))
    assert (await begun).body == b"served"
    assert not any(each.done() for each in held)
    port.gate.refuse("h:2", 9)
    for each in held:
        denial = not_master(await each)
        assert denial is not None
        assert (denial.address, denial.epoch, denial.is_begun) == ("h:2", 9, False)
    with pytest.raises(ConnectionLost):
        await connection.request(Command(Code.MULTI_PULL))
    assert port.gate.refused == 2


def fail(_peer: object, _command: Command) -> Command:
    raise AssertionError("this must not be begun")


async def test_what_comes_while_the_log_opens_is_carried_out_by_the_new_master() -> None:
    """On the connections that came meanwhile; those of the role before have ended. A stranger waits for nothing."""
    port = Port()
    before = port.connect()
    port.gate.suspend("about to be the master")
    with pytest.raises(ConnectionLost):
        await before.request(Command(Code.MULTI_PULL))
    connection, stranger = port.connect(), port.connect()
    stranger.peer.loopback = False
    held = [asyncio.ensure_future(connection.request(Command(Code.MULTI_PULL))) for _ in range(2)]
    assert (await stranger.request(Command(Code.MULTI_PULL))).code == 16
    assert not any(each.done() for each in held)
    port.serve(8)
    assert [(await each).body for each in held] == [b"served", b"served"]
    assert (await connection.request(Command(Code.APPEND_MANY))).body == b"served"


@pytest.mark.parametrize(("room", "body"), [("HELD_MAX", b""), ("HELD_BYTES_MAX", b"12")])
async def test_only_so_much_waits_for_a_hand_over(monkeypatch: pytest.MonkeyPatch, room: str, body: bytes) -> None:
    monkeypatch.setattr(f"broker.roles.serving.{room}", 1)
    port = Port()
    port.serve(8)
    connection = port.connect()
    port.gate.suspend()
    first = asyncio.ensure_future(connection.request(Command(Code.MULTI_PULL)))
    await asyncio.sleep(0)
    more = not_master(await connection.request(Command(Code.APPEND_MANY, body=body)))
    assert more is not None
    assert (more.address, first.done()) == ("", False)
    port.gate.refuse("h:2", 9)
    assert (await first).fields["masterAddress"] == "h:2"


async def test_appends_need_admission_and_reads_do_not() -> None:
    """Too few in sync: messages are refused with the reason of the admission, everything else continues."""
    port = Port()
    port.serve(1)
    connection = port.connect()
    assert (await connection.request(Command(Code.APPEND_MANY))).body == b"served"
    port.refusal = Refused(2, "1 of 2 replicas in sync")
    refused = await connection.request(Command(Code.APPEND_MANY))
    assert (refused.code, refused.remark) == (2, "1 of 2 replicas in sync")
    assert (await connection.request(Command(Code.MULTI_PULL))).body == b"served"


async def test_a_client_without_rights_does_not_learn_the_master() -> None:
    """Access is checked in every role."""
    gate = RoleGate({}, Access({"key": "secret"}), lambda _reason: None)
    connection = inprocess.connect(gate)
    connection.peer.loopback = False
    assert (await connection.request(Command(Code.MULTI_PULL))).code == 16


MEMBER = ReplicationConfig(enabled=True, port=10_909)


class Log:
    """Records what was logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, int]] = []

    def info(self, event: str, **fields: int) -> None:
        self.lines.append(("info", event, fields["main_port"]))

    def warning(self, event: str, **fields: int) -> None:
        self.lines.append(("warning", event, fields["port"]))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (BrokerConfig(port=10_911), 10_909),
        (BrokerConfig(port=3), 1),
        (BrokerConfig(port=2), 0),
        (BrokerConfig(port=0), 0),
        (BrokerConfig(port=10_911, vip_port=0), 0),
        (BrokerConfig(port=10_911, vip_port=5_000), 5_000),
        (BrokerConfig(port=0, vip_port=5_000), 5_000),
        (BrokerConfig(port=10_911, admin_port=10_909), 0),
        (BrokerConfig(port=10_911, range_reader_port=10_909), 0),
        (BrokerConfig(port=10_911, replication=MEMBER), 0),
        (BrokerConfig(port=10_914), 10_912),
    ],
)
def test_the_port_two_below_unless_the_configuration_says_otherwise(config: BrokerConfig, expected: int) -> None:
    assert vip_port_of(config) == expected


async def test_a_port_in_use_or_switched_off_is_logged_and_the_server_continues() -> None:
    server, log = RemotingServer(lambda _peer, command: command.reply()), Log()
    await server.start("127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        assert await open_vip_port(server, BrokerConfig(vip_port=taken), log) == 0
    assert await open_vip_port(server, BrokerConfig(port=0), log) == 0
    assert log.lines == [("warning", "vip_port_unavailable", taken), ("info", "vip_port_off", 0)]
    assert await open_vip_port(server, BrokerConfig(vip_port=taken), log) == taken
    await server.stop()
    with socket.create_server(("127.0.0.1", taken)):
        """The stop has freed it."""
