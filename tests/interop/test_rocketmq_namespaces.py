"""RocketMQ's own Java client in two namespaces, with the same names of topic and group in both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import rocketmq_java
from tests.interop.rocketmq_java import JavaProcess
from tests.processes.rig import Server

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]

FIRST, SECOND = NAMESPACES = ("MQ_INST_1", "MQ_INST_2")


def rules(user: str, *namespaces: str) -> str:
    """A user who may send and consume in these namespaces; `%25` is the `%` in the resource of a group."""
    lines = [
        f"topic readwrite {space}%orders/#\ntopic read $group/{space}%25readers\ntopic read %RETRY%{space}%readers/#\n"
        for space in namespaces
    ]
    return f"user {user}\n{''.join(lines)}"


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled programs of this folder."""
    return rocketmq_java.compiled(tmp_path_factory.mktemp("classes"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    listed = tmp_path / "rules"
    listed.write_text(rules("both", *NAMESPACES) + rules("one", FIRST))
    keys = "broker.access_keys=both:secret-1,one:secret-2"
    made = Server(tmp_path / "data", "--set", f"broker.access_list={listed}", "--set", keys)
    made.start()
    yield made
    made.kill_if_running()


def run(classes: Path, home: Path, server: Server, kind: str, user: str, secret: str, deliveries: int) -> list[str]:
    """What the clients of both namespaces printed until there were so many deliveries."""
    address = f"127.0.0.1:{server.ports['remoting']}"
    program = JavaProcess(classes, home, "Namespaces", address, kind, user, secret, str(deliveries))
    try:
        program.wait_for("ready", 120)
        return [line for line in program.lines if line.startswith(NAMESPACES)]
    finally:
        program.kill()


def test_two_namespaces_see_nothing_of_each_other(classes: Path, server: Server, tmp_path: Path) -> None:
    """Neither messages nor those that are tried again."""
    lines = run(classes, tmp_path / "both", server, "v1", "both", "secret-1", 8)
    for space in NAMESPACES:
        assert lines.count(f"{space} sent SEND_OK") == 2, lines
        wanted = [(body, times) for body in ("good", "dead") for times in (0, 1)]
        got = {line for line in lines if line.startswith(f"{space} got")}
        assert got == {f"{space} got {body} of {space} tried {times} of orders" for body, times in wanted}


def test_rules_name_namespaces_apart(classes: Path, server: Server, tmp_path: Path) -> None:
    lines = run(classes, tmp_path / "one", server, "v1", "one", "secret-2", 4)
    assert lines.count(f"{FIRST} sent SEND_OK") == 2, lines
    assert any(f"may not publish '{SECOND}%orders'" in line for line in lines), lines
    assert not any(line.startswith((f"{SECOND} got", f"{SECOND} sent")) for line in lines)


def test_a_namespace_that_only_the_fields_of_requests_have_separates_nothing(
    classes: Path, server: Server, tmp_path: Path
) -> None:
    """RocketMQ's brokers ignore the fields too: both clients use the topic and the group by their plain names."""
    server.kill_if_running()
    plain = Server(tmp_path / "plain")
    plain.start()
    try:
        lines = run(classes, tmp_path / "v2", plain, "v2", "both", "secret-1", 0)
        for space in NAMESPACES:
            assert lines.count(f"{space} sent SEND_OK") == 2, lines
    finally:
        plain.kill_if_running()
