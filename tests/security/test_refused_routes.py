"""A lookup of a route with a wrong key, or without a right, reveals nothing and leads to the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from remoting.client.blocking import BlockingConnection
from remoting.protocol.bodies.controller_body import TopicRoute, decode_body
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.signature import Signer
from tests.processes.broker_group import Controller, until
from tests.processes.rig import Process, Server

SETTINGS = (
    "access_list={rules} access_keys=writer:the-secret,node:its-secret,other:a-secret bound_signatures_only={bound}"
)
RULES = "user writer\ntopic readwrite plant\nuser node\nrole broker real-broker\nuser other\ntopic readwrite else/#\n"
PULL = {
    "consumerGroup": "g",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "1",
    "sysFlag": "4",
    "subscription": "*",
}
SEND = {"a": "p", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
WRONG = [("writer", "wrong"), ("nobody", "the-secret")]
OTHER = ("other", "a-secret")
"""A right key with a rule for another topic."""
TOPICS = ["plant", "missing", "TBW102", "%RETRY%group", ""]


@dataclass
class Place:
    """Where routes are looked up and, behind it, the real broker."""

    name_server: int
    broker: int
    processes: list[Server]


def options(part: str, folder: Path, *, bound: bool = False) -> list[str]:
    settings = SETTINGS.format(rules=folder / "rules", bound=str(bound).lower()).split(" ")
    return [word for setting in settings for word in ("--set", f"{part}.{setting}")]


def all_in_one(folder: Path, *, bound: bool = False) -> Place:
    server = Server(folder / "data", *options("broker", folder, bound=bound), "--set", "broker.broker_name=real-broker")
    server.start()
    return Place(server.ports["remoting"], server.ports["remoting"], [server])


def apart(folder: Path) -> Place:
    controller = Controller(folder, 1, 0, "", options("controller", folder))
    controller.start()
    key = folder / "node.key"
    key.touch(mode=0o600)
    key.write_text("node:its-secret\n")
    arguments = ["broker", "--data", str(folder / "broker-data"), "--controllers", f"127.0.0.1:{controller.port}"]
    arguments += ["--set", "broker.broker_name=real-broker", "--set", f"broker.access_key_file={key}"]
    broker = Process(folder / "broker", [*arguments, *options("broker", folder)], "remoting")
    broker.start()
    return Place(controller.port, broker.port, [broker, controller])


@pytest.fixture(scope="module", params=[all_in_one, apart], ids=["up", "apart"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("refused")
    (folder / "rules").write_text(RULES)
    made: Place = request.param(folder)
    try:
        assert ask(made.broker, ("writer", "the-secret"), "plant").code == ResponseCode.SUCCESS
        until(lambda: b"real-broker" in look_up(made.name_server, ("writer", "the-secret"), "plant").body, "no route")
        yield made
    finally:
        for each in made.processes:
            each.kill_if_running()


def request(port: int, key: tuple[str, str], command: Command) -> Command:
    """Signed as RocketMQ's clients do it."""
    Signer(*key).sign(command)
    with BlockingConnection.dial(f"127.0.0.1:{port}", 15_000) as connection:
        return connection.request(command)


def look_up(port: int, key: tuple[str, str], topic: str) -> Command:
    return request(port, key, Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic}))


def ask(port: int, key: tuple[str, str], topic: str) -> Command:
    return request(port, key, Command(RequestCode.SEND_MESSAGE_V2, fields=SEND | {"b": topic}, body=b"x"))


def test_all_topics_look_the_same_and_no_broker_is_revealed(place: Place) -> None:
    """Existing or not, readable by others or not, by an unknown key or with a wrong secret: the same bytes."""
    replies = [look_up(place.name_server, key, topic) for key in WRONG for topic in TOPICS]
    replies += [look_up(place.name_server, OTHER, topic) for topic in ("plant", "missing", "%RETRY%group")]
    assert len({(reply.code, reply.remark, str(reply.fields), reply.body) for reply in replies}) == 1
    assert replies[0].code == ResponseCode.SUCCESS
    route = decode_body(replies[0].body, TopicRoute)
    assert [each.broker_addrs for each in route.broker_datas] == [{0: f"127.0.0.1:{place.name_server}"}]
    shown = replies[0].body
    assert b"real-broker" not in shown
    assert b"DefaultCluster" not in shown
    assert place.broker == place.name_server or b"%d" % place.broker not in shown


@pytest.mark.parametrize("key", WRONG, ids=["wrong-secret", "unknown-key"])
@pytest.mark.parametrize("topic", ["plant", "missing"])
def test_the_route_given_leads_to_the_reason(place: Place, key: tuple[str, str], topic: str) -> None:
    route = decode_body(look_up(place.name_server, key, topic).body, TopicRoute)
    address = route.broker_datas[0].broker_addrs[0]
    refused = ask(int(address.rpartition(":")[2]), key, topic)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert refused.remark == f"the signature by access key '{key[0]}' is not valid"


@pytest.mark.parametrize("topic", ["plant", "missing"])
def test_a_right_key_without_a_rule_is_refused_with_a_reason(place: Place, topic: str) -> None:
    """Producer and consumer; it finds what it may use, and a topic that does not exist is unknown, not forbidden."""
    route = decode_body(look_up(place.name_server, OTHER, topic).body, TopicRoute)
    port = int(route.broker_datas[0].broker_addrs[0].rpartition(":")[2])
    pull = Command(RequestCode.PULL_MESSAGE, fields=PULL | {"topic": topic})
    for answer, action in ((ask(port, OTHER, topic), f"publish '{topic}'"), (request(port, OTHER, pull), "consume")):
        assert answer.code == ResponseCode.NO_PERMISSION
        assert (answer.remark or "").startswith(f"other may not {action}")
    assert look_up(place.name_server, OTHER, "else").code == ResponseCode.TOPIC_NOT_EXIST
    if place.broker != place.name_server:
        assert ask(port, OTHER, "else").code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_others_are_refused_as_before(place: Place) -> None:
    """LightMQ's own clients show the reason themselves; no key at all proves no wrong key."""
    lookup = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "plant"})
    with BlockingConnection.dial(f"127.0.0.1:{place.name_server}", 15_000, signer=Signer(*WRONG[0])) as own:
        assert own.request(lookup).code == ResponseCode.NO_PERMISSION
    with BlockingConnection.dial(f"127.0.0.1:{place.name_server}", 15_000, signer=Signer(*OTHER)) as own:
        assert own.request(Command(lookup.code, fields={"topic": "plant"})).code == ResponseCode.NO_PERMISSION
    with BlockingConnection.dial(f"127.0.0.1:{place.name_server}", 15_000) as nameless:
        fields = {"topic": "plant"}
        assert nameless.request(Command(lookup.code, fields=fields)).code == ResponseCode.NO_PERMISSION
    cluster = request(place.name_server, WRONG[0], Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    assert (cluster.code, cluster.body) == (ResponseCode.NO_PERMISSION, b"")


def test_a_signature_of_an_unsupported_kind_leads_to_the_reason_too(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text(RULES)
    place = all_in_one(tmp_path, bound=True)
    try:
        key = ("writer", "the-secret")
        assert b"access-refused" in look_up(place.name_server, key, "plant").body
        assert "bound_signatures_only" in (ask(place.broker, key, "plant").remark or "")
    finally:
        place.processes[0].kill_if_running()
