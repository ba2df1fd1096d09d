"""Every scenario against a real server: `lightmq up`, or the one LIGHTMQ_CONFORMANCE_ADDRESS=host:port names."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator

import pytest

from tests.conformance.mqtt3.script import Scenario, load_scenarios
from tests.conformance.mqtt3.targets import ServerTarget
from tests.conformance.mqtt5.runner5 import Run5
from tests.conformance.mqtt5.script5 import HERE, packet_of
from tests.processes.rig import Server

pytestmark = pytest.mark.processes
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerTarget]:
    """The server under test."""
    address = os.environ.get("LIGHTMQ_CONFORMANCE_ADDRESS")
    if address:
        host, _, port = address.rpartition(":")
        yield ServerTarget(host, int(port))
        return
    started = Server(tmp_path_factory.mktemp("conformance5") / "data")
    started.start()
    yield ServerTarget("127.0.0.1", started.port)
    started.end(signal.SIGTERM)


@pytest.mark.parametrize("scenario", load_scenarios(HERE), ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, server: ServerTarget) -> None:
    """The script passes against the server."""
    Run5(server, f"u{os.getpid()}y{next(NUMBERS)}").play(scenario)


def test_several_copies_have_their_own_identifiers(server: ServerTarget) -> None:
    """[MQTT-3.3.4-5] an ordinary and a shared subscription of one client: two copies, in either order."""
    unique = f"u{os.getpid()}y{next(NUMBERS)}"
    run, topic = Run5(server, unique), f"{unique}/t"
    run.connect("a")
    for number, topic_filter in ((1, topic), (2, f"$share/{unique}/{topic}")):
        run.send("a", "subscribe", f"id={number}", f"filter={topic_filter}:0", f"sub_id={number}")
        run.expect("a", "suback", f"id={number}", "codes=0")
    run.connect("b")
    run.send("b", "publish", f"topic={topic}", "payload=x")
    copies = [packet_of(["publish", f"topic={topic}", "payload=x", f"sub_id={number}"]) for number in (1, 2)]
    assert sorted(run.client("a").next_packet() for _ in copies) == copies
    run.quiet("a")
    for name in ("a", "b"):
        run.drop(name)
