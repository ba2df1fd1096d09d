"""RocketMQ's clients for Go and C++, and ali-ons, against `lightmq up`; and the table of what each was tried with.

The fetched clients are `other_clients`. The table in docs/howto/rocketmq.md must name exactly what these tests, and
those of the Java and gRPC clients, run.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop import other_clients, test_grpc_java, test_grpc_node, test_rocketmq_java
from tests.processes.rig import ROOT, Installation

pytestmark = pytest.mark.timeout(600)
TIMEOUT_S = 500
SIGNED = ("sync", "tags")
"""Scenarios that are repeated with keys."""
SCENARIOS = {
    "Go": (
        "sync", "async", "oneway", "batch", "orderly", "delay_level", "delay_ms", "tags", "sql", "retry", "pull",
        "transaction", "request_reply", "large",
    ),
    "C++": ("sync", "oneway", "batch", "orderly", "delay_level", "tags", "pull"),
    "ali-ons": ("sync", "tags", "sql", "delay_level", "retry"),
}  # fmt: skip
COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "Go": other_clients.go_command,
    "C++": other_clients.cpp_command,
    "ali-ons": other_clients.ali_ons_command,
}


def run(command: list[str], scenarios: tuple[str, ...], home: Path, **variables: str) -> list[str]:
    """What the program printed about its scenarios."""
    environment = {**os.environ, "HOME": str(home), **variables}
    done = subprocess.run(
        [*command, *scenarios], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment
    )
    lines = [line for line in done.stdout.splitlines() if line.split(" ")[0] in scenarios]
    assert lines, done.stdout[-1_000:] + done.stderr[-1_000:]
    return lines


def topics_of(server: Installation, scenarios: tuple[str, ...], *options: str) -> None:
    """The topics of ali-ons, which expects them to be there."""
    for scenario in scenarios:
        create = ["topics", "create", f"ali_ons_{scenario}", "--server", server.address, *options]
        subprocess.run([*server.python, *create], check=True, capture_output=True, cwd=ROOT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    made = Installation(tmp_path_factory.mktemp("clients") / "data", "--set", "broker.transaction_check_after_ms=1000")
    made.start()
    yield made
    made.kill_if_running()


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A server that knows one key, with the right to everything."""
    folder = tmp_path_factory.mktemp("signed")
    (folder / "rules").write_text("user clients\nrole admin\ntopic readwrite #\ntopic read $group/#\n")
    settings = (f"broker.access_list={folder / 'rules'}", "broker.access_keys=clients:a-long-secret")
    made = Installation(folder / "data", *(word for setting in settings for word in ("--set", setting)))
    made.start()
    yield made
    made.kill_if_running()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("client", SCENARIOS)
def test_the_client_does_what_the_table_says(client: str, server: Installation, tmp_path: Path) -> None:
    command, scenarios = COMMANDS[client](server.address), SCENARIOS[client]
    if client == "ali-ons":
        topics_of(server, scenarios)
    assert run(command, scenarios, tmp_path) == [f"{name} ok" for name in scenarios]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("client", SCENARIOS)
def test_the_client_signs_its_requests(client: str, signed: Installation, tmp_path: Path) -> None:
    command = COMMANDS[client](signed.address)
    if client == "ali-ons":
        (tmp_path / "key").write_text("clients:a-long-secret")
        (tmp_path / "key").chmod(0o600)
        topics_of(signed, SIGNED, "--access-key-file", str(tmp_path / "key"))
    right = {"ACCESS_KEY": "clients", "SECRET_KEY": "a-long-secret"}
    assert run(command, SIGNED, tmp_path, **right) == [f"{name} ok" for name in SIGNED]


def test_the_table_of_clients_names_what_is_tried() -> None:
    """A scenario that a client passes, and no other, has a mark in the client's column."""
    python = (ROOT / "tests" / "processes" / "test_grpc.py").read_text()
    tried = {
        "Java": set(test_rocketmq_java.FEATURES),
        **{client: set(scenarios) for client, scenarios in SCENARIOS.items()},
        "Java gRPC": set(test_grpc_java.SCENARIOS),
        "Python gRPC": set(re.findall(r'client\(tmp_path, "(\w+)"', python)),
        "Node.js gRPC": set(test_grpc_node.FOUND),
    }
    page = (ROOT / "docs" / "howto" / "rocketmq.md").read_text()
    section = page.partition("### Which client was tried with what\n")[2].partition("\n#")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    head, body = rows[0][1:], rows[2:]
    assert head == list(tried)
    marked: dict[str, set[str]] = {client: set() for client in head}
    for row in body:
        for client, cell in zip(head, row[1:], strict=True):
            marked[client].update(re.findall(r"`(\w+)`", cell))
    assert marked == tried
