"""What RocketMQ Dashboard asks for, page by page, read as it reads it: at `lightmq up` and at a broker group.

The Dashboard itself is not in Maven Central; `Dashboard.java` makes its calls with RocketMQ's own tools and clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import rocketmq_java
from tests.interop.rocketmq_java import JavaProcess
from tests.processes.broker_group import BrokerGroup
from tests.processes.rig import Server

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(400)]

PAGES = (
    "cluster", "config", "charts", "replicas", "topics", "topic", "send", "groups", "group", "producers", "messages",
    "message", "trace", "resend", "dead_letters", "reset", "operations", "delete",
)  # fmt: skip
TOPIC = "seen"
NOISE = ("|-INFO", "|-WARN", "\tat ")


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled programs of this folder."""
    return rocketmq_java.compiled(tmp_path_factory.mktemp("classes"))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[str]:
    server = Server(tmp_path / "data")
    server.start()
    yield f"127.0.0.1:{server.ports['remoting']}"
    server.kill_if_running()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[str]:
    cluster = BrokerGroup(tmp_path, controllers=3)
    try:
        cluster.start()
        cluster.settle()
        yield cluster.addresses.replace(",", ";")
    finally:
        cluster.end()


@pytest.mark.parametrize(("place", "replicas"), [("alone", "0"), ("group", "2")])
def test_every_page_of_the_dashboard_has_what_it_reads(
    request: pytest.FixtureRequest, classes: Path, tmp_path: Path, place: str, replicas: str
) -> None:
    name_servers = request.getfixturevalue(place)
    members = JavaProcess(classes, tmp_path / "members", "Members", name_servers, TOPIC)
    try:
        _, _client, unique, _offset = members.wait_for("member ", 90).split()
        pages = JavaProcess(classes, tmp_path / "pages", "Dashboard", name_servers, TOPIC, unique, replicas)
        lines = pages.end(180)
    finally:
        members.kill()
    said = [line for line in lines if line.split(" ")[0] in PAGES]
    told = [line for line in lines if not any(noise in line for noise in NOISE)]
    assert said == [f"{page} ok" for page in PAGES], "\n".join(told[-60:])
