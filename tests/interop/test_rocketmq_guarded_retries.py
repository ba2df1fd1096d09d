"""Consumers of real clients under an access list: what they fail to handle comes again, and ends in the dead letters.

The rights of a group cover its retry and dead-letter topics: by the list (`bob`, `gofer`, `ann`) and by requests
(`tom`, as `mqadmin` makes users). `eve` may read the topic, and has no right to a group.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from remoting.client.admin import topic_fields
from remoting.client.blocking import BlockingConnection, checked
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import StoredMessage, iter_stored
from remoting.transport.signature import Signer
from tests.interop import other_clients, rocketmq_java, test_grpc_java, test_rocketmq_other_clients
from tests.interop.rocketmq_java import JavaProcess
from tests.processes.rig import Installation

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]

RULES = """user ops
role admin
user sender
topic write plant/#
topic write ordered/#
topic write popped/#
user bob
topic read plant/#
topic read ordered/#
topic read popped/#
topic read $group/bob-plant
topic read $group/bob-ordered
topic read $group/bob-popped
user gofer
topic readwrite go_dead/#
topic readwrite go_retry/#
topic read $group/go_dead_readers
topic read $group/go_retry_readers
user ann
topic readwrite push/#
topic readwrite dead/#
topic readwrite fifo/#
topic read $group/push-pushed
topic read $group/dead-pushed
topic read $group/fifo-pushed
user eve
topic readwrite plant/#
topic readwrite push/#
"""
SECRETS = {name: f"{name}-secret" for name in ("ops", "sender", "bob", "gofer", "ann", "eve", "tom")}
TOPICS = ("plant", "ordered", "popped", "push", "dead", "fifo", "go_dead", "go_retry")
POPPING = ("bob-popped", "tom-popped")
DEADLINE_S = 120
BODIES = ("bad-0", "bad-1", "good-0", "good-1")


def ask(server: Installation, user: str, code: int, body: object = None, **fields: str) -> Command:
    """The answer to a request of one user."""
    signer = Signer(user, SECRETS[user])
    with BlockingConnection.dial(server.address, 30_000, signer=signer) as connection:
        text = b"" if body is None else json.dumps(body).encode()
        return connection.request(Command(code, fields=fields, body=text))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """With the topics, groups that try twice, and the user `tom`."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "rules").write_text(RULES)
    keys = ",".join(f"{name}:{secret}" for name, secret in SECRETS.items() if name != "tom")
    settings = (f"broker.access_list={folder / 'rules'}", f"broker.access_keys={keys}")
    made = Installation(folder / "data", "--grpc-port", "0", *(word for one in settings for word in ("--set", one)))
    made.start()
    try:
        for topic in TOPICS:
            fields = topic_fields(topic, 2)
            checked(ask(made, "ops", RequestCode.UPDATE_AND_CREATE_TOPIC, **fields))
        for name, more in (
            *((name, {"retryMaxTimes": 1}) for name in (*POPPING, "dead-pushed")),
            ("fifo-pushed", {"consumeMessageOrderly": True}),
        ):
            group = {"groupName": name, **more}
            checked(ask(made, "ops", RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group))
        user = {"username": "tom", "password": SECRETS["tom"], "userType": "Normal"}
        checked(ask(made, "ops", RequestCode.AUTH_CREATE_USER, user, username="tom"))
        entries = [
            {"resource": resource, "actions": ["Sub"], "decision": "Allow"}
            for topic in ("plant", "ordered", "popped")
            for resource in (f"Topic:{topic}", f"Group:tom-{topic}")
        ]
        rules = {"subject": "User:tom", "policies": [{"policyType": "Custom", "entries": entries}]}
        checked(ask(made, "ops", RequestCode.AUTH_CREATE_ACL, rules, subject="User:tom"))
        yield made
    finally:
        made.kill_if_running()


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled programs of this folder."""
    return rocketmq_java.compiled(tmp_path_factory.mktemp("classes"))


def send(server: Installation, topic: str, bodies: Sequence[str]) -> dict[str, str]:
    """Body -> unique id of the message, all in one queue."""
    sent = {}
    with BlockingConnection.dial(server.address, 30_000, signer=Signer("sender", SECRETS["sender"])) as connection:
        for body in bodies:
            fields = {"a": "p", "b": topic, "c": "TBW102", "d": "2", "e": "0", "f": "0", "h": "0", "i": ""}
            fields["g"] = str(time.time_ns() // 10**6)
            answer = connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=body.encode()))
            sent[body] = checked(answer).fields["transactionId"]
    return sent


def dead_letters(server: Installation, user: str, group: str, *bodies: str) -> list[StoredMessage]:
    """The group's dead letters with these bodies, as the user may read them, once all are there."""
    fields = {
        "consumerGroup": group, "topic": f"%DLQ%{group}", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    deadline = time.monotonic() + DEADLINE_S
    while True:
        answer = ask(server, user, RequestCode.PULL_MESSAGE, **fields)
        found = list(iter_stored(answer.body)) if answer.code == ResponseCode.SUCCESS else []
        wanted = [letter for letter in found if bytes(letter.body).decode() in bodies]
        if len(wanted) == len(bodies):
            return wanted
        assert time.monotonic() < deadline, f"{len(found)} dead letters of {group}: {answer}"
        time.sleep(0.5)


@pytest.mark.parametrize("user", ["bob", "tom"])
@pytest.mark.parametrize(
    ("how", "topic", "retries"), [("push", "plant", 2), ("orderly", "ordered", 2), ("pop", "popped", 1)]
)
def test_java_consumers_retry_and_then_bury(
    server: Installation, classes: Path, tmp_path: Path, user: str, how: str, topic: str, retries: int
) -> None:
    """Each as often as the group allows, what is good once; dead letters name the messages that they were."""
    group = f"{user}-{topic}"
    if how == "pop":
        mode = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
        checked(ask(server, "ops", RequestCode.SET_MESSAGE_REQUEST_MODE, mode))
    bodies = [f"{body}-{user}" for body in BODIES]
    sent = send(server, topic, bodies)
    most = 16 if how == "pop" else retries  # of a group that pops the broker counts
    arguments = (server.address, topic, group, user, SECRETS[user], how, str(most))
    consumer = JavaProcess(classes, tmp_path / "home", "FailingConsumer", *arguments)
    try:
        letters = dead_letters(server, user, group, *bodies[:2])
        consumer.say("")
        lines = consumer.end(60)
    finally:
        consumer.kill()
    delivered = [line.split()[1:] for line in lines if line.startswith("delivered ")]
    counts = [[body, str(number)] for body in bodies for number in range(1 if "good" in body else retries + 1)]
    assert sorted(each for each in delivered if each[0] in bodies) == sorted(counts)
    for letter in letters:
        origin = dict(letter.properties)
        assert origin[b"DLQ_ORIGIN_TOPIC"] == topic.encode()
        assert origin[b"DLQ_ORIGIN_MESSAGE_ID"].decode() == sent[bytes(letter.body).decode()]


def test_a_java_consumer_without_a_right_to_the_group_is_told_so(
    server: Installation, classes: Path, tmp_path: Path
) -> None:
    arguments = (server.address, "plant", "bob-plant", "eve", SECRETS["eve"], "commit")
    lines = JavaProcess(classes, tmp_path / "home", "FailingConsumer", *arguments).end(120)
    (said,) = (line for line in lines if line.startswith(("failed ", "delivered")))
    assert "CODE: 16" in said
    assert "eve may not consume '$group/bob-plant'" in said


def go(server: Installation, folder: Path, user: str, *scenarios: str) -> list[str]:
    """The line of each scenario."""
    keys = {"ACCESS_KEY": user, "SECRET_KEY": SECRETS[user]}
    return test_rocketmq_other_clients.run(other_clients.go_command(server.address), scenarios, folder, **keys)


def test_the_go_consumer_retries_and_then_buries(server: Installation, tmp_path: Path) -> None:
    assert go(server, tmp_path, "gofer", "retry", "dead") == ["retry ok", "dead ok"]
    (letter,) = dead_letters(server, "gofer", "go_dead_readers", "1")
    assert dict(letter.properties)[b"DLQ_ORIGIN_TOPIC"] == b"go_dead"


def grpc(server: Installation, folder: Path, user: str, *scenarios: str) -> list[str]:
    """The line of each scenario."""
    keys = [f"-Dkey={user}", f"-Dsecret={SECRETS[user]}"]
    return test_grpc_java.outcome(folder, f"127.0.0.1:{server.ports['grpc']}", *scenarios, properties=keys)


def test_grpc_consumers_retry_and_then_bury(server: Installation, tmp_path: Path) -> None:
    assert grpc(server, tmp_path, "ann", "push", "fifo", "dead") == ["push ok", "fifo ok", "dead ok"]
    (letter,) = dead_letters(server, "ann", "dead-pushed", "never")
    assert dict(letter.properties)[b"DLQ_ORIGIN_TOPIC"] == b"dead"
    (refused,) = grpc(server, tmp_path, "eve", "push")
    assert "push failed" in refused
    said = (tmp_path / "logs" / "rocketmq" / "rocketmq-client.log").read_text()  # the client's exception has no reason
    assert "eve may not consume '$group/push-pushed'" in said.replace("\\", "")
