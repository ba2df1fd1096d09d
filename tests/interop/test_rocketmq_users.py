"""RocketMQ's `mqadmin` creates users and rules, and its Java client sends with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import rocketmq_java
from tests.interop.rocketmq_java import JavaProcess
from tests.interop.test_rocketmq_java import administer
from tests.processes.rig import Server

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]

COMMANDS = [
    ("createUser -n {ns} -b {ns} -u ann -p ann-secret -t Normal", "success"),
    ("createUser -n {ns} -b {ns} -u ann -p other -t Normal", "CODE: 29"),
    ("createUser -n {ns} -c DefaultCluster -u boss -p boss-secret -t Super", "success"),
    ("createAcl -n {ns} -b {ns} -s User:ann -r Topic:plant,Group:g -a Pub,Sub -d Allow", "success"),
    ("createAcl -n {ns} -c DefaultCluster -s User:ann -r Topic:old* -a All -i 10.0.0.0/8 -d Deny", "success"),
    ("updateAcl -n {ns} -b {ns} -s User:ann -r Group:g -a Sub -d Allow", "success"),
    ("createAcl -n {ns} -b {ns} -s User:nobody -r Topic:plant -a Pub -d Allow", "CODE: 3001"),
    ("getAcl -n {ns} -b {ns} -s User:ann", "Topic:old*"),
    ("listAcl -n {ns} -b {ns} -s ann -r Topic:plant", "[Pub, Sub]"),
    ("getUser -n {ns} -b {ns} -u ann", "Normal"),
    ("listUser -n {ns} -b {ns}", "boss"),
    ("updateUser -n {ns} -b {ns} -u boss -s disable", "success"),
    ("deleteAcl -n {ns} -b {ns} -s User:ann -r Topic:old*", "success"),
    ("deleteUser -n {ns} -b {ns} -u boss", "success"),
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


def sent(classes: Path, home: Path, server: Server, topic: str, key: str, secret: str) -> str:
    """What the program printed about its send."""
    arguments = (f"127.0.0.1:{server.ports['remoting']}", topic, key, secret)
    return "\n".join(JavaProcess(classes, home, "WrongKey", *arguments).end(120))


def test_users_of_mqadmin_sign_and_have_their_rules_also_after_a_kill(classes, server, tmp_path):
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "tools.yml").write_text("accessKey: ops\nsecretKey: the-secret\n")
    names = {"ns": f"127.0.0.1:{server.ports['remoting']}"}
    commands = [command.format(**names) for command, _said in COMMANDS]
    answers = administer(classes, home, commands)
    wrong = [
        (command, answer)
        for command, (_, said), answer in zip(commands, COMMANDS, answers, strict=True)
        if answer[-1] != "<== ended" or said not in "\n".join(answer)
    ]
    assert not wrong
    assert "ann-secret" not in str(answers)
    assert "sent SEND_OK" in sent(classes, home, server, "plant", "ann", "ann-secret")
    assert "ann may not publish 'else'" in sent(classes, home, server, "else", "ann", "ann-secret")
    server.kill()
    server.start()
    assert "sent SEND_OK" in sent(classes, home, server, "plant", "ann", "ann-secret")
    assert "is not valid" in sent(classes, home, server, "plant", "ann", "wrong")
