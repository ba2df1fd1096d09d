"""Finding the masters of broker groups."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import pytest

from remoting.protocol.bodies.route_body import BrokerData, ClusterInfo
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import join_address
from spark_connector.brokers.masters import GroupMaster, find_masters
from spark_connector.errors import BrokerMoved, BrokerRefused, BrokerUnreachable
from spark_connector.options.read_write import ReadOptions, parse_read
from tests.unit.spark_connector.toy_broker import ToyBroker

Options = Callable[..., ReadOptions]


def addresses(options: ReadOptions) -> dict[str, tuple[str, int]]:
    """Where the masters of the groups are."""
    return {group: master.address for group, master in find_masters(options).items()}


def moved(command: Command, **named: str) -> Command:
    """The answer of a broker that is no longer the master."""
    return command.reply(ResponseCode.NOT_MASTER, "not the master", named)


def test_a_server_that_is_no_name_server_is_the_broker(broker: ToyBroker, read_options: Options) -> None:
    assert addresses(read_options(topic="t")) == {"": broker.address}


def test_masters_by_name(broker: ToyBroker, read_options: Options) -> None:
    table = {
        "b": BrokerData("c", "b", {0: "h2:2", 1: "h3:3"}),
        "a": BrokerData("c", "a", {0: "h1:1"}),
        "z": BrokerData("c", "z", {1: "h:4"}),
    }
    body = msgspec.json.encode(ClusterInfo(table))
    broker.faults = [lambda command: command.reply(body=body)]
    assert list(addresses(read_options(topic="t")).items()) == [("a", ("h1", 1)), ("b", ("h2", 2))]
    broker.faults = [lambda command: command.reply(body=msgspec.json.encode(ClusterInfo({})))]
    with pytest.raises(BrokerUnreachable, match="knows no broker"):
        addresses(read_options(topic="t"))


def test_the_next_name_server_is_asked(broker: ToyBroker) -> None:
    dead = ToyBroker()
    dead.close()
    servers = ";".join(f"{host}:{port}" for host, port in (dead.address, broker.address))
    assert addresses(parse_read({"topic": "t", "nameServer": servers, "fetchRetries": "0"})) == {"": broker.address}


def test_a_silent_master_is_left_when_another_one_leads(broker: ToyBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name server still names it, then no master, then another one: only that ends the wait."""
    monkeypatch.setattr("remoting.client.blocking.LOOK_MS", 5)
    silent, server, goes_on = ToyBroker(), ToyBroker(), threading.Event()
    tables = [
        {"a": BrokerData("c", "a", {0: join_address(*silent.address)})},
        {"a": BrokerData("c", "a", {1: "h:1"})},
        *[{"a": BrokerData("c", "a", {0: join_address(*broker.address)})}] * 2,
    ]
    bodies = [msgspec.json.encode(ClusterInfo(table)) for table in tables]
    server.faults = [lambda command, body=body: command.reply(body=body) for body in bodies]
    silent.faults = [lambda _command: goes_on.wait(30) and None]
    options = parse_read({"topic": "t", "nameServer": join_address(*server.address), "fetchretryintervalms": "1"})
    master = GroupMaster("a", silent.address, options)
    assert master.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO), refusal_is_error=False).opaque
    goes_on.set()
    assert master.address == broker.address
    assert server.faults == []
    assert len(silent.requests) == 1
    for each in (silent, server):
        each.close()


def test_a_former_master_names_the_new_one(broker: ToyBroker, read_options: Options) -> None:
    """No name server is asked for what an answer says; the request is made again there."""
    former = ToyBroker()
    former.faults = [lambda command: moved(command, masterAddress=join_address(*broker.address), masterEpoch="3")]
    master = GroupMaster("", former.address, read_options(topic="t"))
    replies = master.ask_all([Command(12345), Command(54321)])
    assert [reply.code for reply in replies] == [ResponseCode.REQUEST_CODE_NOT_SUPPORTED] * 2
    assert (master.address, broker.requests) == (broker.address, [12345, 54321])
    with pytest.raises(BrokerRefused, match="refused"):
        master.ask(Command(12345))
    former.close()


def test_a_group_without_a_master_is_unreachable(broker: ToyBroker, read_options: Options) -> None:
    """Every attempt meets a broker that is not the master and names no other."""
    broker.answer = moved  # type: ignore[method-assign]
    master = GroupMaster("", broker.address, read_options(topic="t", fetchRetries="2"))
    with pytest.raises(BrokerUnreachable, match=r"after 3 attempts: .*not the master of its group.*'nameServer'"):
        master.ask(Command(12345))
    with pytest.raises(BrokerMoved):
        master.check(moved(Command(12345)))
    assert broker.requests.count(12345) == 3
