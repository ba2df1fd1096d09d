"""Moving in from a running RocketMQ 5.5.0 cluster (name server and broker from Maven) under 500 messages a second.

The migration is killed, consumers switch in the middle and switch back, then producers and consumers move: every
message is consumed, none out of the order of its queue, and repeats are counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.maven import jars
from benchmarks.rocketmq_clients import rocketmq
from remoting.client.blocking import BlockingConnection, checked, cluster
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.signature import Signer
from tests.processes.migrations import (
    GROUP,
    QUEUES,
    TOPIC,
    Consumer,
    Migrator,
    Producer,
    all_of,
    judge,
    make_topic,
    send,
    sending,
)
from tests.processes.rig import Installation, no_traceback

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]
PER_SECOND = 500


AUTH = "org.apache.rocketmq.auth"
SETTINGS = (
    f"authenticationMetadataProvider={AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    f"authorizationMetadataProvider={AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
)
"""With these a broker keeps users and rules; they are not enforced."""


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """RocketMQ's name server and broker; their addresses."""
    folder = jars("rocketmq")
    if folder is None:
        pytest.skip("RocketMQ's jars cannot be fetched: see the output")
    home = tmp_path / "rocketmq"
    home.mkdir()
    with rocketmq("SYNC_FLUSH", home, folder, home, *SETTINGS) as (names, _pid):
        with BlockingConnection.dial(names) as connection:
            (broker,) = cluster(connection).broker_addr_table.values()
        address = broker.master()
        assert address is not None
        yield names, address


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path / "ours")
    try:
        made.start()
        yield made
        no_traceback(made)
    finally:
        made.kill_if_running()


def test_a_cluster_in_use_moves_in(theirs: tuple[str, str], ours: Installation, tmp_path: Path) -> None:
    names, broker = theirs
    make_topic(broker)
    producer = Producer(broker, PER_SECOND)
    producer.start()
    producer.flowing()
    migrator = Migrator(names, ours.address, tmp_path / "migrate.log")
    consumers = [Consumer(broker)]
    try:
        migrator.start()
        producer.flowing()
        migrator.kill()
        producer.flowing()
        migrator.start()
        for address in (ours.address, broker, ours.address):  # there, back, and there again
            consumers[-1].until(5 * PER_SECOND)
            consumers[-1].stop()  # the next one begins at once, with offsets that are up to a second old
            consumers.append(Consumer(address))
        producer.finish()
        migrator.run("switch", "--topic", TOPIC, "--settle", "1")
        sent = set(producer.answered)
        last = set(range(max(sent) + 1, max(sent) + 101))
        for number in sorted(last):
            checked(send(ours.address, number))
        sent |= last
        consumers[-1].until(sent - {number for one in consumers for seen in one.seen.values() for number in seen})
        consumers[-1].stop()
        assert {row["state"] for row in migrator.run("verify", "--json")} == {"equal"}
    finally:
        producer.stopped.set()
        migrator.kill()
    for queue in range(QUEUES):
        assert all_of(ours.address, queue) == [number for number in sorted(sent) if number % QUEUES == queue]
    repeats = judge(consumers, sent)
    print(f"{len(sent)} messages, {repeats} of them again after a switch")
    assert repeats < len(sent)  # those of a round of the mirror or two for each switch; more on a busy machine
    with BlockingConnection.dial(ours.address) as connection:
        groups = json.loads(checked(connection.request(Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))).body)
    assert groups["subscriptionGroupTable"][GROUP]["retryMaxTimes"] == 7


def test_producers_and_consumers_switch_and_switch_back(
    theirs: tuple[str, str], ours: Installation, tmp_path: Path
) -> None:
    """500 messages a second there, then here, then there again; the migration is killed in each direction."""
    names, broker = theirs
    make_topic(broker)
    migrator = Migrator(names, ours.address, tmp_path / "migrate.log")
    consumers = [Consumer(broker)]
    producers: list[Producer] = []
    try:
        for address, action in ((broker, "switch"), (ours.address, "switch-back"), (broker, "")):
            if not migrator.is_running:
                migrator.start()
            first = max(producers[-1].answered) + 1 if producers else 0
            producers.append(Producer(address, PER_SECOND, first))
            producers[-1].start()
            consumers[-1].until(consumers[-1].count + 3 * PER_SECOND)  # from the other side, after the first round
            if len(producers) > 1:
                consumers[-1].stop()
                consumers.append(Consumer(address))  # at once, with offsets that are up to a second old
            migrator.kill()
            producers[-1].flowing()
            migrator.start()
            producers[-1].flowing()
            producers[-1].finish()
            if action:
                migrator.run(action, "--topic", TOPIC, "--settle", "1")
        sent = {number for producer in producers for number in producer.answered}
        consumers[-1].until(sent - {number for one in consumers for seen in one.seen.values() for number in seen})
        consumers[-1].stop()
        rows = migrator.until_copied()
        assert sum(row["returned"] for row in rows if row["topic"] == TOPIC) == len(producers[1].answered)
        assert {row["state"] for row in migrator.run("verify", "--json")} == {"equal"}
    finally:
        for producer in producers:
            producer.stopped.set()
        migrator.kill()
    wanted = [[number for number in sorted(sent) if number % QUEUES == queue] for queue in range(QUEUES)]
    assert [all_of(ours.address, queue) for queue in range(QUEUES)] == wanted
    there = [all_of(broker, queue) for queue in range(QUEUES)]
    assert [list(dict.fromkeys(numbers)) for numbers in there] == wanted
    repeats = judge(consumers, sent)
    twice = sum(map(len, there)) - len(sent)
    print(f"{len(sent)} messages: {repeats} consumed again, {twice} mirrored back twice")
    assert repeats < PER_SECOND * 10


def test_users_and_rules_come_along(theirs: tuple[str, str], tmp_path: Path) -> None:
    """With their passwords; who may not write there may not write here."""
    names, broker = theirs
    make_topic(broker)
    entry = {"resource": f"Topic:{TOPIC}", "actions": ["Pub"], "sourceIps": [], "decision": "Allow"}
    rules = {"subject": "User:ann", "policies": [{"policyType": "Custom", "entries": [entry]}]}
    with BlockingConnection.dial(broker) as connection:
        for name in ("ann", "bob"):
            body = {"username": name, "password": f"{name}-secret", "userType": "Normal"}
            made = Command(RequestCode.AUTH_CREATE_USER, fields={"username": name}, body=json.dumps(body).encode())
            checked(connection.request(made))
        made = Command(RequestCode.AUTH_CREATE_ACL, fields={"subject": "User:ann"}, body=json.dumps(rules).encode())
        checked(connection.request(made))
    (tmp_path / "rules").write_text("user ops\nrole admin\n")
    key = tmp_path / "key"
    key.write_text("ops:the-secret\n")
    key.chmod(0o600)
    settings = (f"broker.access_list={tmp_path / 'rules'}", "broker.access_keys=ops:the-secret")
    server = Installation(tmp_path / "ours", *(word for setting in settings for word in ("--set", setting)))
    try:
        server.start()
        migrator = Migrator(names, server.address, tmp_path / "migrate.log")
        signed = ("--access-key-file", str(key))
        for _ in range(2):  # the second time everything is here
            left_out = [row["left_out"] for row in migrator.run("copy", "--users", "--json", *signed)]
            assert all(what.lower().startswith(("rmq_sys_", "schedule_", "trans_check_")) for what in left_out)
        migrator.run("switch", "--settle", "1", *signed)
        answers = {}
        for name in ("ann", "bob"):
            with BlockingConnection.dial(server.address, signer=Signer(name, f"{name}-secret")) as connection:
                answers[name] = connection.request(sending(0)).code
        assert answers == {"ann": ResponseCode.SUCCESS, "bob": ResponseCode.NO_PERMISSION}
        no_traceback(server)
    finally:
        server.kill_if_running()
