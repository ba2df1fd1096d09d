"""RocketMQ's `mqadmin` creates users and rules, alone and in a cluster, and its Java client sends with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import rocketmq_java
from tests.interop.rocketmq_java import JavaProcess
from tests.interop.test_rocketmq_java import administer
from tests.processes.broker_group import BrokerGroup, until
from tests.processes.rig import Server
from tests.processes.test_cluster_users import SECRETS, cluster

__all__ = ["cluster"]

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]

COMMANDS = [
    ("createUser -n {ns} -b {master} -u ann -p ann-secret -t Normal", "success"),
    ("createUser -n {ns} -b {master} -u ann -p other -t Normal", "CODE: 29"),
    ("createUser -n {ns} -c DefaultCluster -u chief -p chief-secret -t Super", "success"),
    ("createAcl -n {ns} -b {master} -s User:ann -r Topic:plant,Group:g -a Pub,Sub -d Allow", "success"),
    ("createAcl -n {ns} -c DefaultCluster -s User:ann -r Topic:old* -a All -i 10.0.0.0/8 -d Deny", "success"),
    ("updateAcl -n {ns} -b {master} -s User:ann -r Group:g -a Sub -d Allow", "success"),
    ("createAcl -n {ns} -b {master} -s User:nobody -r Topic:plant -a Pub -d Allow", "CODE: 3001"),
    ("getAcl -n {ns} -b {master} -s User:ann", "Topic:old*"),
    ("listAcl -n {ns} -b {master} -s ann -r Topic:plant", "[Pub, Sub]"),
    ("getUser -n {ns} -b {master} -u ann", "Normal"),
    ("listUser -n {ns} -b {master}", "chief"),
    ("updateUser -n {ns} -b {master} -u chief -s disable", "success"),
    ("deleteAcl -n {ns} -b {master} -s User:ann -r Topic:old*", "success"),
    ("deleteUser -n {ns} -b {master} -u chief", "success"),
]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled programs of this folder."""
    return rocketmq_java.compiled(tmp_path_factory.mktemp("classes"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "rules").write_text("user ops\nrole admin\n")
    settings = (f"broker.access_list={tmp_path / 'rules'}", "broker.access_keys=ops:the-secret")
    made = Server(tmp_path / "data", *(word for setting in settings for word in ("--set", setting)))
    made.start()
    yield made
    made.kill_if_running()


def commanded(classes: Path, home: Path, **names: str) -> list[list[str]]:
    """The answers to all commands, each as it must be."""
    commands = [command.format(**names) for command, _said in COMMANDS]
    answers = administer(classes, home, commands)
    wrong = [
        (command, answer)
        for command, (_, said), answer in zip(commands, COMMANDS, answers, strict=True)
        if answer[-1] != "<== ended" or said not in "\n".join(answer)
    ]
    assert not wrong
    return answers


def sent(classes: Path, home: Path, name_servers: str, topic: str, key: str, secret: str) -> str:
    """What the program printed about its send."""
    arguments = (name_servers, topic, key, secret)
    return "\n".join(JavaProcess(classes, home, "WrongKey", *arguments).end(120))


def test_users_of_mqadmin_sign_and_have_their_rules_also_after_a_kill(classes, server, tmp_path):
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "tools.yml").write_text("accessKey: ops\nsecretKey: the-secret\n")
    place = f"127.0.0.1:{server.ports['remoting']}"
    answers = commanded(classes, home, ns=place, master=place)
    assert "ann-secret" not in str(answers)
    assert "sent SEND_OK" in sent(classes, home, place, "plant", "ann", "ann-secret")
    assert "ann may not publish 'else'" in sent(classes, home, place, "else", "ann", "ann-secret")
    server.kill()
    server.start()
    place = f"127.0.0.1:{server.ports['remoting']}"
    assert "sent SEND_OK" in sent(classes, home, place, "plant", "ann", "ann-secret")
    assert "is not valid" in sent(classes, home, place, "plant", "ann", "wrong")


def test_users_of_mqadmin_are_those_of_a_whole_cluster_also_after_a_failover(classes, cluster: BrokerGroup, tmp_path):
    """Three controllers and two brokers: clients look routes up at controllers, which know the users too."""
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "tools.yml").write_text(f"accessKey: boss\nsecretKey: {SECRETS['boss']}\n")
    master = cluster.settle()
    servers = cluster.addresses.replace(",", ";")
    address = f"127.0.0.1:{master.ports['remoting']}"
    answers = commanded(classes, home, ns=servers, master=address)
    assert "ann-secret" not in str(answers)
    assert "sent SEND_OK" in sent(classes, home, servers, "plant", "ann", "ann-secret")
    assert "ann may not publish 'else'" in sent(classes, home, servers, "else", "ann", "ann-secret")
    master.kill()
    until(lambda: (found := cluster.master()) is not None and found is not master, "no new master")
    assert "sent SEND_OK" in sent(classes, home, servers, "plant", "ann", "ann-secret")
    assert "is not valid" in sent(classes, home, servers, "plant", "ann", "wrong")
