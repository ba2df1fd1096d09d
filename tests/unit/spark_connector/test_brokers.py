"""Finding brokers and watching their bounds."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import pytest

from remoting.protocol.bounds_body import decode_bounds_reply, encode_bounds_reply
from remoting.protocol.codes import RequestCode
from remoting.protocol.commands import Command
from remoting.protocol.route_body import BrokerData, ClusterInfo
from spark_connector.brokers import BoundsWatch, ask_master, find_brokers
from spark_connector.errors import BrokerMoved, BrokerUnreachable
from spark_connector.options import ReadOptions, parse_read
from spark_connector.selection import light_key, select
from tests.unit.spark_connector.toy_broker import NAME, ToyBroker

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


def test_bounds_of_exact_and_wildcard(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("plant/1", [b"a", b"b"])
    broker.publish("plant/2", [b"c"])
    options = read_options(mqttFilter="plant/1")
    watch = BoundsWatch(options, select(options))
    (bounds,) = watch.read().values()
    assert (bounds.min, bounds.max) == (0, 2)
    assert watch.addresses == {NAME: broker.address}
    options = read_options(mqttFilter="plant/+")
    found = BoundsWatch(options, select(options)).read()
    assert sum(one.max for one in found.values()) == 3


def test_readers_are_known_while_a_broker_has_some(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("plant/1", [b"a"])
    options = read_options(mqttFilter="plant/1")
    watch = BoundsWatch(options, select(options))
    watch.read()
    told: list[str | None] = []

    def tell(command: Command) -> Command:
        reply = broker.answer(command)
        body = msgspec.structs.replace(decode_bounds_reply(reply.body), readers=told[-1])
        return command.reply(body=encode_bounds_reply(body))

    for address, known in (("h:1", {NAME: ("h", 1)}), ("no address", {}), ("[::1]:2", {NAME: ("::1", 2)}), (None, {})):
        told.append(address)
        broker.faults = [tell]
        watch.read()
        assert watch.readers == known


def test_waiting_asks_with_what_was_seen(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("plant/1", [b"a"])
    options = read_options(mqttFilter="plant/1,car/1")
    watch = BoundsWatch(options, select(options))
    assert set(watch.wait(50)) == {light_key("plant/1", NAME)}, "the first answer needs no waiting"
    asked: list[bytes] = []

    def spy(command):  # type: ignore[no-untyped-def]
        asked.append(command.body)
        return broker.answer(command)

    broker.faults = [spy]
    watch.wait(50)
    assert b'"wait_ms":50' in asked[0]
    assert b'"known":{"plant":{' in asked[0]
    assert broker.requests[-3:] == [RequestCode.QUEUE_BOUNDS] * 3


def test_the_same_answer_is_not_read_again(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("plant/1", [b"a"])
    options = read_options(mqttFilter="plant/+")
    watch = BoundsWatch(options, select(options))
    first = watch.read()
    assert watch.read() is first
    assert watch.present == {NAME}
    broker.publish("plant/1", [b"b"])
    second = watch.read()
    assert sum(one.max for one in second.values()) == 2
    assert all(one is other for one, other in zip(first, second, strict=True)), "the keys are the same objects"


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
