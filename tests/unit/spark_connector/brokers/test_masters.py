"""Finding the masters of broker groups."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import pytest

from remoting.protocol.bodies.route_body import BrokerData, ClusterInfo
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from spark_connector.brokers.masters import ask_master, find_brokers
from spark_connector.errors import BrokerMoved, BrokerUnreachable
from spark_connector.options.read_write import ReadOptions, parse_read
from tests.unit.spark_connector.toy_broker import ToyBroker

Options = Callable[..., ReadOptions]


def test_a_server_that_is_no_name_server_is_the_broker(broker: ToyBroker, read_options: Options) -> None:
    assert find_brokers(read_options(topic="t")) == {"": broker.address}


def test_masters_by_name(broker: ToyBroker, read_options: Options) -> None:
    table = {
        "b": BrokerData("c", "b", {0: "h2:2", 1: "h3:3"}),
        "a": BrokerData("c", "a", {0: "h1:1"}),
        "z": BrokerData("c", "z", {1: "h:4"}),
    }
    body = msgspec.json.encode(ClusterInfo(table))
    broker.faults = [lambda command: command.reply(body=body)]
    assert list(find_brokers(read_options(topic="t")).items()) == [("a", ("h1", 1)), ("b", ("h2", 2))]
    broker.faults = [lambda command: command.reply(body=msgspec.json.encode(ClusterInfo({})))]
    with pytest.raises(BrokerUnreachable, match="knows no broker"):
        find_brokers(read_options(topic="t"))


def test_the_next_name_server_is_asked(broker: ToyBroker) -> None:
    dead = ToyBroker()
    dead.close()
    servers = ";".join(f"{host}:{port}" for host, port in (dead.address, broker.address))
    assert find_brokers(parse_read({"topic": "t", "nameServer": servers, "fetchRetries": "0"})) == {"": broker.address}


def test_a_master_that_stands_still_is_left_when_another_one_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name server still names it, then nobody, then another one: only that ends the wait."""
    monkeypatch.setattr("remoting.client.blocking.LOOK_MS", 5)
    silent, server, goes_on = ToyBroker(), ToyBroker(), threading.Event()
    host, port = silent.address
    tables = [
        {"a": BrokerData("c", "a", {0: f"{host}:{port}"})}, {"a": BrokerData("c", "a", {1: "h:1"})},
        {"a": BrokerData("c", "a", {0: "h2:2"})},
    ]  # fmt: skip
    bodies = [msgspec.json.encode(ClusterInfo(table)) for table in tables]
    server.faults = [lambda command, body=body: command.reply(body=body) for body in bodies]
    silent.faults = [lambda _command: goes_on.wait(30) and None]
    options = parse_read({"topic": "t", "nameServer": f"{server.address[0]}:{server.address[1]}"})
    with pytest.raises(BrokerMoved, match="silent and no longer the master"):
        ask_master(silent.address, Command(RequestCode.QUEUE_BOUNDS), options)
    goes_on.set()
    assert server.faults == []
    assert len(silent.requests) == 1
    for each in (silent, server):
        each.close()
