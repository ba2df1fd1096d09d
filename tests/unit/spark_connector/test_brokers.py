"""Connections of a worker, the masters of broker groups, and outages."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from remoting.client.tls import ClientTls
from remoting.protocol.addresses import join_address
from remoting.protocol.bodies.controller_body import BrokerData, ClusterInfo, QueueData, TopicRoute
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.router import Access
from remoting.transport.contracts import Peer
from remoting.transport.failures import TlsFailed
from spark_connector.brokers import POOL, GroupMaster, Outage, find_masters, patiently, topic_queues
from spark_connector.errors import BrokerMoved, BrokerRefused, BrokerUnreachable
from spark_connector.options.read_write import ReadOptions, parse_read, parse_write
from tests.unit.spark_connector.toy_broker import ToyBroker

Options = Callable[..., ReadOptions]


def ask(options: ReadOptions) -> dict[str, GroupMaster]:
    """One request of the kind that name servers get; a toy broker is none, and stands for itself."""
    return find_masters(options)


def name_servers(*brokers: ToyBroker) -> str:
    return ";".join(join_address(*one.address) for one in brokers)


def test_a_connection_is_used_again(broker: ToyBroker) -> None:
    with POOL.borrow(broker.address, 1000) as first:
        pass
    with POOL.borrow(broker.address, 1000) as second:
        assert second is first


def test_a_failed_or_unanswered_connection_is_not(broker: ToyBroker) -> None:
    with pytest.raises(RuntimeError), POOL.borrow(broker.address, 1000) as failed:
        raise RuntimeError
    assert failed.closed
    with POOL.borrow(broker.address, 1000) as hasty:
        hasty.send(Command(12345))
    assert hasty.closed


def test_a_connection_closed_by_the_server_is_not_reused(broker: ToyBroker, read_options: Options) -> None:
    """As after a restart of the broker: no attempt is lost on it."""
    with POOL.borrow(broker.address, 1000) as former:
        former.request(Command(12345))
    broker.drop_connections()
    deadline = time.monotonic() + 10
    while not former.stale:
        assert time.monotonic() < deadline
    with POOL.borrow(broker.address, 1000) as new:
        assert new is not former
        new.request(Command(12345))
    assert former.closed


def test_a_forked_child_uses_nothing_of_its_parents(broker: ToyBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with POOL.borrow(broker.address, 1000) as parents:
        pass
    real = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: real + 1)
    with POOL.borrow(broker.address, 1000) as childs:
        assert childs is not parents


def test_a_lost_connection_is_made_again(broker: ToyBroker, read_options: Options) -> None:
    broker.faults = [lambda command: None, lambda command: None]
    ask(read_options(topic="t"))
    assert len(broker.requests) == 3


def test_unreachable_names_the_address(broker: ToyBroker, read_options: Options) -> None:
    broker.close()
    host, port = broker.address
    with pytest.raises(BrokerUnreachable, match=rf"{host}:{port} after 2 attempts.*lightmq up.*nameServer"):
        ask(read_options(topic="t", fetchretries="1"))


def test_requests_are_signed_and_connections_keep_to_their_key(broker: ToyBroker, read_options: Options) -> None:
    access = Access({"mine": "hidden"})
    stranger = cast("Peer", SimpleNamespace(loopback=False, address="far:1", attributes={}))

    def checked(command: Command) -> Command | None:
        return access.admit(stranger, command)

    broker.faults = [checked, checked, checked]  # the first gives the challenge that the others are bound to
    signed = read_options(topic="t", accesskey="mine", secretkey="hidden")
    for _ in range(2):
        ask(signed)
    assert broker.faults == []
    with POOL.borrow(broker.address, 1000, signer=signed.signer) as signing, POOL.borrow(broker.address, 1000) as plain:
        assert signing is not plain


def test_connections_keep_to_their_tls_and_an_untrusted_server_is_not_retried(
    broker: ToyBroker, read_options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain connection is not used where TLS is required; an untrusted certificate ends it at once."""
    tries = []

    def untrusted(host: str, port: int, *_: object, tls: ClientTls | None = None, **__: object) -> None:
        tries.append(tls)
        raise TlsFailed(host, port, "self-signed certificate")

    with POOL.borrow(broker.address, 1000):
        pass
    monkeypatch.setattr("spark_connector.brokers.BlockingConnection", untrusted)
    wanted = read_options(topic="t", tls="true", tlscafile=str(tmp_path / "ca.pem"))
    with pytest.raises(BrokerUnreachable, match=r"self-signed.*tlsCaFile"):
        ask(wanted)
    assert tries == [ClientTls(ca_file=tmp_path / "ca.pem")]


def test_an_outage_ends_or_fails(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("remoting.clock.monotonic_s", lambda: now[0])
    outage = Outage(parse_read({"topic": "t", "brokerWait": "5s", "fetchRetryIntervalMs": "1"}))
    for now[0] in (0.0, 4.9):
        outage.pause_after(BrokerUnreachable("gone"))
    outage.end()
    outage.end()
    assert [record.getMessage() for record in caplog.records] == [
        "waiting up to 5000 ms for a broker: gone",
        "the broker is back after 4900 ms",
    ]
    now[0] = 100.0
    outage.pause_after(BrokerUnreachable("gone"))
    now[0] = 105.0
    with pytest.raises(BrokerUnreachable, match="gone, for longer than the option 'brokerWaitMs' = 5000"):
        outage.pause_after(BrokerUnreachable("gone"))


def test_what_may_be_repeated_is_repeated_until_it_is_answered() -> None:
    answers: list[Any] = [BrokerUnreachable("gone"), BrokerUnreachable("gone"), "here"]

    def work() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    options = parse_write({"fetchRetryIntervalMs": "1"})
    assert patiently(work, options) == "here"
    answers[:] = [BrokerUnreachable("gone")]
    with pytest.raises(BrokerUnreachable, match="gone"):
        patiently(work, parse_write({"brokerWaitMs": "0"}))


def test_the_time_that_a_failure_takes_is_part_of_the_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that accept connections and say nothing cost a minute before the first failure is seen."""
    now, tries = [0.0], []
    monkeypatch.setattr("remoting.clock.monotonic_s", lambda: now[0])

    def work() -> None:
        tries.append(now[0])
        now[0] += 60.0
        raise BrokerUnreachable("gone")

    with pytest.raises(BrokerUnreachable, match="for longer than the option 'brokerWaitMs' = 100000"):
        patiently(work, parse_write({"brokerWait": "100s", "fetchRetryIntervalMs": "1"}))
    assert tries == [0.0, 60.0]


def addresses(options: ReadOptions) -> dict[str, tuple[str, int]]:
    """Where the masters of the groups are."""
    return {group: master.address for group, master in find_masters(options).items()}


def moved(command: Command, **named: str) -> Command:
    """The answer of a broker that is no longer the master."""
    return command.reply(ResponseCode.NOT_MASTER, "not the master", named)


def test_a_server_that_is_not_a_name_server_is_the_broker(broker: ToyBroker, read_options: Options) -> None:
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


def test_a_silent_name_server_is_tried_once_where_another_one_answers(broker: ToyBroker) -> None:
    """All its attempts come only if nobody else has an answer."""
    silent = ToyBroker()
    silent.close()
    table = {"a": BrokerData("c", "a", {0: "h1:1"})}
    broker.faults = [lambda command: command.reply(body=msgspec.json.encode(ClusterInfo(table)))]
    options = {"topic": "t", "nameServer": name_servers(silent, broker), "fetchRetryIntervalMs": "60000"}
    assert addresses(parse_read(options)) == {"a": ("h1", 1)}


def test_a_topic_is_missing_only_if_no_name_server_knows_it_and_all_have_said_so(broker: ToyBroker) -> None:
    """One that has just started, or lost its way to a group, does not know what the silent one knows."""
    other = ToyBroker()
    for one in (broker, other):
        one.faults = [lambda command: command.reply(ResponseCode.TOPIC_NOT_EXIST)]
    options = {
        "topic": "t",
        "nameServer": name_servers(other, broker),
        "fetchRetries": "1",
        "fetchRetryIntervalMs": "1",
    }
    assert topic_queues("new", parse_read(options)) == ()
    other.close()
    broker.faults = [lambda command: command.reply(ResponseCode.TOPIC_NOT_EXIST)]
    host, port = other.address
    with pytest.raises(
        BrokerUnreachable, match=rf"topic 'new' exists, not every .* no answer from {host}:{port} after 2"
    ):
        topic_queues("new", parse_read(options))
    body = msgspec.json.encode(TopicRoute(queue_datas=[QueueData("b", 4, 4, 6)]))
    broker.faults = [lambda command: command.reply(body=body)]
    assert [one.broker_name for one in topic_queues("known", parse_read(options))] == ["b"]


def test_a_broker_beside_the_name_servers_is_no_master_of_a_named_group(broker: ToyBroker) -> None:
    """It may belong to another group: only the name server knows the present master."""
    gone, server, beside = ToyBroker(), ToyBroker(), ToyBroker()
    gone.close()
    table = {"a": BrokerData("c", "a", {0: join_address(*broker.address)})}
    server.faults = [lambda command: command.reply(body=msgspec.json.encode(ClusterInfo(table)))]
    servers = ";".join(join_address(*each.address) for each in (beside, server))
    master = GroupMaster("a", gone.address, parse_read({"topic": "t", "nameServer": servers}))
    assert master.ask(Command(12345), refusal_is_error=False).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert (master.address, broker.requests) == (broker.address, [12345])
    assert 12345 not in beside.requests
    options = parse_read({"topic": "t", "nameServer": join_address(*beside.address), "fetchRetries": "0"})
    with pytest.raises(BrokerUnreachable, match="is not a name server and cannot find broker group 'a'"):
        GroupMaster("a", gone.address, options).ask(Command(12345))
    for each in (server, beside):
        each.close()


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
    """No name server is needed for what an answer contains; the request is repeated there."""
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
