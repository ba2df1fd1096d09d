"""Every scenario against a real server: `lightmq up`, or the one LIGHTMQ_CONFORMANCE_ADDRESS=host:port names."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator

import pytest

from tests.conformance.mqtt3.runner import Run
from tests.conformance.mqtt3.script import Scenario, load_scenarios
from tests.conformance.mqtt3.targets import ServerTarget
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
    started = Server(tmp_path_factory.mktemp("conformance") / "data")
    started.start()
    yield ServerTarget("127.0.0.1", started.port)
    started.end(signal.SIGTERM)


@pytest.mark.parametrize("scenario", load_scenarios(), ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, server: ServerTarget) -> None:
    """[MQTT-7.0.0-2] The script passes against the server."""
    Run(server, f"u{os.getpid()}x{next(NUMBERS)}").play(scenario)
