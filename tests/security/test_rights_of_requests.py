"""Every request code, sent by a key with rights to one topic and without a key: refused, routes unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.access.rights import RIGHTS
from remoting.client.blocking import BlockingConnection
from remoting.protocol.bodies.controller_body import ClusterInfo, TopicRoute, decode_body
from remoting.protocol.bodies.pull_body import QueueBoundsRequest, decode_bounds_reply, encode_bounds_request
from remoting.protocol.frames.codes import RequestCode, ResponseCode, request_name
from remoting.protocol.frames.commands import Command
from remoting.transport.signature import Signer
from tests.processes.broker_group import BrokerGroup, until
from tests.processes.rig import Server
from tests.security.request_attempts import SHOWN_IN_PART, Target, attempts
from tests.support.message_ids import parse_offset_message_id

RULES = """\
user etl
topic read plant/#
user boss
role admin
user edge
role proxy
user node
role broker broker-a
user stranger
role broker other-broker
user brain
role controller
"""
KEYS = {name: f"secret-of-{name}" for name in ("etl", "boss", "edge", "node", "stranger", "brain")}
NO = ResponseCode.NO_PERMISSION
OF_MEMBERS = {
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED, RequestCode.GET_BROKER_EPOCH_CACHE, RequestCode.ELECTION,
    RequestCode.AGREE_LOCKS,
}  # fmt: skip
"""Answered by members of a group only."""
OF_REPLICAS = {RequestCode.AGREE_LOCKS}
"""Answered while a replica stands in for its master; its right is checked by `test_rights_while_standing_in`."""
OF_CONTROLLERS = frozenset(
    code for code in RIGHTS
    if code in range(100, 107) or code in range(1_001, 1_014)
    or code in (205, 206, 216, 217, 219, 224, 304, 318, 319, 322, 327, 901, 904)
    or code in (9060, 9062, 9063, 9064, 9074, 9075, 9076, 9077)
) - OF_MEMBERS  # fmt: skip


def ask(port: int, key: str | None, command: Command) -> Command:
    signer = Signer(key, KEYS[key]) if key is not None else None
    copy = Command(command.code, fields=dict(command.fields), body=command.body)
    with BlockingConnection.dial(f"127.0.0.1:{port}", 15_000, signer=signer) as connection:
        return connection.request(copy)


def send(port: int, topic: str) -> int:
    """Write a message as a proxy may; returns its position."""
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    reply = ask(port, "edge", Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"x"))
    assert reply.code == 0, reply.remark
    return parse_offset_message_id(reply.fields["msgId"])[1]


def target_at(controller: int, broker: int) -> Target:
    send(broker, "plant")
    position = send(broker, "secret")
    bounds = Command(RequestCode.QUEUE_BOUNDS, body=encode_bounds_request(QueueBoundsRequest(topics=["secret"])))
    queue_id = decode_bounds_reply(ask(broker, "edge", bounds).body).queues[0].id
    until(lambda: route(controller, "edge", "secret").code == 0, "no route of the topic")
    name, address = next(iter(addresses(controller).items()))
    return Target(name, address, queue_id=queue_id, position=position)


def addresses(port: int) -> dict[str, str]:
    """Broker name -> address of its master, according to the name server."""
    reply = ask(port, "boss", Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    table = decode_body(reply.body, ClusterInfo).broker_addr_table
    return {name: group.broker_addrs[0] for name, group in table.items() if group.broker_addrs}


def route(port: int, key: str | None, topic: str) -> Command:
    return ask(port, key, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic}))


def options(part: str, folder: Path, *more: str) -> list[str]:
    keys = ",".join(f"{key}:{secret}" for key, secret in KEYS.items())
    settings = (f"{part}.access_list={folder / 'rules'}", f"{part}.access_keys={keys}", *more)
    return [word for setting in settings for word in ("--set", setting)]


def key_file(folder: Path, key: str) -> Path:
    made = folder / f"{key}.key"
    made.touch(mode=0o600)
    made.write_text(f"{key}:{KEYS[key]}\n")
    return made


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Target]]:
    folder = tmp_path_factory.mktemp("rights")
    (folder / "rules").write_text(RULES)
    made = Server(folder / "data", *options("broker", folder))
    made.start()
    try:
        port = made.ports["remoting"]
        yield port, target_at(port, port)
    finally:
        made.kill_if_running()


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int, Target]]:
    """A controller and a member of a group, each with the rules."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "rules").write_text(RULES)
    node, brain = key_file(folder, "node"), key_file(folder, "brain")
    arguments = {
        "controller": options("controller", folder, f"controller.access_key_file={brain}"),
        "broker": options("broker", folder, f"broker.access_key_file={node}"),
    }
    group = BrokerGroup(folder, brokers=2, in_sync_min=2, arguments=arguments)
    try:
        for part in (*group.controllers, *group.brokers):
            part.start()
        for each in group.brokers:
            each.admin_key = f"boss:{KEYS['boss']}"
        master = group.settle()
        controller, broker = group.controllers[0].ports["remoting"], master.ports["remoting"]
        yield controller, broker, target_at(controller, broker)
    finally:
        group.end()


@pytest.mark.parametrize("key", ["etl", None])
@pytest.mark.parametrize("code", sorted(set(RIGHTS) - OF_MEMBERS), ids=request_name)
def test_in_one_process(up: tuple[int, Target], code: int, key: str | None) -> None:
    port, target = up
    attempt(port, port, target, code, key)


@pytest.mark.parametrize("code", sorted(set(RIGHTS) - OF_MEMBERS - OF_CONTROLLERS), ids=request_name)
def test_on_behalf_of_a_client(up: tuple[int, Target], code: int) -> None:
    """A proxy that names its client has the client's rights, not its own."""
    port, target = up
    command = attempts(target)[code]
    command.fields["onBehalfOf"] = "etl"
    reply = ask(port, "edge", command)
    if code not in SHOWN_IN_PART:
        assert reply.code == NO, (reply.code, reply.remark, reply.fields, reply.body)
    assert b"secret" not in reply.body


@pytest.mark.parametrize("key", ["etl", None])
@pytest.mark.parametrize("code", sorted(set(RIGHTS) - OF_REPLICAS), ids=request_name)
def test_in_processes_of_their_own(parts: tuple[int, int, Target], code: int, key: str | None) -> None:
    controller, broker, target = parts
    attempt(controller if code in OF_CONTROLLERS else broker, controller, target, code, key)


def attempt(port: int, controller: int, target: Target, code: int, key: str | None) -> None:
    """The attempt is refused or reveals nothing of others; routes are unchanged."""
    reply = ask(port, key, attempts(target)[code])
    if key is None or code not in SHOWN_IN_PART:
        assert reply.code == NO, (reply.code, reply.remark, reply.fields, reply.body)
        assert not reply.body
    assert b"secret" not in reply.body
    assert addresses(controller)[target.broker] == target.address
    assert route(controller, "edge", "secret").code == 0


@pytest.mark.parametrize("code", [103, 104, 322, 904, 1001, 1002, 1003, 1012, 1013], ids=request_name)
def test_a_broker_registers_under_its_own_name_only(parts: tuple[int, int, Target], code: int) -> None:
    controller, _, target = parts
    command = attempts(target)[code]
    assert ask(controller, "stranger", command).code == NO
    command.fields["brokerName"] = "other-broker"
    reply = ask(controller, "stranger", command)
    # Under its own name it may; but not with the address of another, whose place in the routes it would take.
    assert (reply.code == NO) == (command.fields.get("brokerAddr") == target.address), reply.remark
    assert ask(controller, "edge", command).code == NO
    assert addresses(controller)[target.broker] == target.address


def test_an_election_requested_by_a_broker_needs_an_administrator(parts: tuple[int, int, Target]) -> None:
    controller, _, target = parts
    command = attempts(target)[RequestCode.CONTROLLER_ELECT_MASTER]
    command.fields["designateElect"] = "true"
    assert ask(controller, "node", command).code == NO


def test_requests_of_ordinary_clients_stay_possible(up: tuple[int, Target]) -> None:
    """A key finds the brokers of the topics it may use, and of the template."""
    port, target = up
    found = route(port, "etl", "plant")
    assert found.code == 0, found.remark
    assert decode_body(found.body, TopicRoute).broker_datas[0].broker_addrs[0] == target.address
    assert route(port, "etl", "TBW102").code == 0
    assert route(port, "etl", "secret").code == NO
    listed = ask(port, "etl", Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
    assert b"plant" in listed.body
    assert ask(port, "etl", Command(RequestCode.HEART_BEAT, body=b'{"clientID":"c"}')).code == 0


def test_administrators_may_administer(up: tuple[int, Target]) -> None:
    port, _ = up
    put = Command(RequestCode.PUT_KV_CONFIG, fields={"namespace": "n", "key": "k", "value": "v"})
    assert ask(port, "boss", put).code == 0
    assert ask(port, "boss", Command(RequestCode.GET_NAMESRV_CONFIG)).code == 0
