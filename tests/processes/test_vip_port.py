"""A client that sends to the port two below the broker's, as RocketMQ's before 4.5 do; routes name the main port."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection
from remoting.protocol.bodies.controller_body import TopicRoute, decode_body
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.signature import Signer
from tests.processes.rig import Server, no_traceback
from tests.support.ports import free_port

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
SEND = {"a": "p", "b": "plant", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
RULES = "user writer\ntopic write plant\n"


class Started(Server):
    """`up`, or a broker by itself without controllers, on a chosen port."""

    def __init__(self, part: str, data: Path, port: int, *options: str) -> None:
        super().__init__(data, *options)
        alone = ("--set", "broker.controllers=") if part == "broker" else ("--mqtt-port", "0")
        self.arguments = (part, "--data", str(data), "--remoting-port", str(port), "--admin-port", "0", *alone)
        self.port = port

    def start(self) -> None:
        self.ports = self.launch(*self.arguments, *self.options)


@pytest.fixture
def servers() -> Iterator[list[Started]]:
    made: list[Started] = []
    yield made
    for each in made:
        each.kill_if_running()
        no_traceback(each)


def ask(port: int, code: int, *, signer: Signer | None = None, body: bytes = b"", **fields: str) -> Command:
    with BlockingConnection.dial(f"127.0.0.1:{port}", 15_000, signer=signer) as connection:
        return connection.request(Command(code, fields=fields, body=body))


def send(port: int, signer: Signer | None = None) -> Command:
    return ask(port, RequestCode.SEND_MESSAGE_V2, signer=signer, body=b"x", **SEND)


@pytest.mark.parametrize("part", ["up", "broker"])
def test_sends_two_below_and_the_route_names_the_main_port(part: str, tmp_path: Path, servers: list[Started]) -> None:
    port = free_port()
    servers.append(server := Started(part, tmp_path / "data", port))
    server.start()
    assert server.ports["remoting"] == port
    assert server.ports["vip"] == port - 2
    sent = send(port - 2)
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    fields = {"topic": "plant", "queueId": sent.fields["queueId"]}
    assert ask(port, RequestCode.GET_MAX_OFFSET, **fields).fields["offset"] == "1"
    if part == "up":
        route = decode_body(ask(port, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="plant").body, TopicRoute)
        assert [broker.broker_addrs for broker in route.broker_datas] == [{0: f"127.0.0.1:{port}"}]


@pytest.mark.parametrize("part", ["up", "broker"])
def test_a_port_in_use_does_not_prevent_the_start(part: str, tmp_path: Path, servers: list[Started]) -> None:
    port = free_port()
    servers.append(server := Started(part, tmp_path / "data", port))
    with socket.create_server(("127.0.0.1", port - 2)):
        server.start()
    assert "vip" not in server.ports
    assert send(port).code == ResponseCode.SUCCESS
    assert server.log.read_text().count("vip_port_unavailable") == 1


def test_a_member_of_a_group_gives_the_same_answers_at_both_ports(tmp_path: Path, servers: list[Started]) -> None:
    """Without a controller it is no master, at either port."""
    port = free_port()
    settings = ("replication.enabled=true", "replication.port=0", "controllers=127.0.0.1:1")
    options = [word for setting in settings for word in ("--set", f"broker.{setting}")]
    servers.append(server := Started("broker", tmp_path / "data", port, *options))
    server.start()
    assert server.ports["vip"] == port - 2
    at_main, at_vip = send(port), send(port - 2)
    assert (at_vip.code, at_vip.remark) == (at_main.code, at_main.remark)
    assert at_vip.code != ResponseCode.SUCCESS


def test_off(tmp_path: Path, servers: list[Started]) -> None:
    port = free_port()
    servers.append(server := Started("up", tmp_path / "data", port, "--set", "broker.vip_port=0"))
    server.start()
    assert "vip" not in server.ports
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port - 2)):
        """Nothing listens on it."""


def test_the_same_rules_apply_there(tmp_path: Path, servers: list[Started]) -> None:
    """Keys and rights are required as at the main port, and connections of both are counted together."""
    (tmp_path / "rules").write_text(RULES)
    port = free_port()
    settings = (
        f"broker.access_list={tmp_path / 'rules'}",
        "broker.access_keys=writer:secret",
        "broker.limits.connections_max=2",
    )
    options = [word for setting in settings for word in ("--set", setting)]
    servers.append(server := Started("up", tmp_path / "data", port, *options))
    server.start()
    assert send(port - 2).code == ResponseCode.NO_PERMISSION
    assert send(port - 2, Signer("writer", "wrong")).code == ResponseCode.NO_PERMISSION
    with BlockingConnection.dial(f"127.0.0.1:{port}", 15_000, signer=Signer("writer", "secret")) as main:
        assert main.request(Command(RequestCode.SEND_MESSAGE_V2, fields=dict(SEND), body=b"x")).code == 0
        with (
            socket.create_connection(("127.0.0.1", port - 2)),
            socket.create_connection(("127.0.0.1", port - 2)) as last,
        ):
            assert last.recv(1) == b""
