"""What RocketMQ's own Java client reports when its access key or secret is wrong, or lacks a right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import rocketmq_java
from tests.interop.rocketmq_java import JavaProcess
from tests.processes.rig import Server

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled programs of this folder."""
    return rocketmq_java.compiled(tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "rules").write_text("user writer\ntopic readwrite plant\nuser other\ntopic readwrite else\n")
    keys = "broker.access_keys=writer:the-secret,other:a-secret,ruleless:b-secret"
    settings = (f"broker.access_list={folder / 'rules'}", keys)
    made = Server(folder / "data", *(word for setting in settings for word in ("--set", setting)))
    made.start()
    yield made
    made.kill_if_running()


def send(classes: Path, home: Path, server: Server, key: str, secret: str) -> list[str]:
    """What the program printed about its send."""
    arguments = (f"127.0.0.1:{server.ports['remoting']}", "plant", key, secret)
    lines = JavaProcess(classes, home, "WrongKey", *arguments).end(120)
    return [line for line in lines if line.startswith(("sent ", "failed "))]


@pytest.mark.parametrize(("key", "secret"), [("writer", "wrong"), ("nobody", "the-secret")])
def test_the_exception_names_the_code_and_the_reason(classes, server, tmp_path, key, secret):
    said = "\n".join(send(classes, tmp_path, server, key, secret))
    assert f"CODE: 16  DESC: the signature by access key '{key}' is not valid" in said
    assert "No route info" not in said


@pytest.mark.parametrize(("key", "secret"), [("other", "a-secret"), ("ruleless", "b-secret")])
def test_so_it_does_for_a_right_key_without_a_rule(classes, server, tmp_path, key, secret):
    said = "\n".join(send(classes, tmp_path, server, key, secret))
    assert f"CODE: 16  DESC: {key} may not publish 'plant'" in said
    assert "No route info" not in said


def test_a_right_key_sends(classes, server, tmp_path):
    assert send(classes, tmp_path, server, "writer", "the-secret") == ["sent SEND_OK"]
