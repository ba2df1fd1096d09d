"""Every scenario against a real server: `lightmq up`, or the one LIGHTMQ_CONFORMANCE_ADDRESS=host:port names."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.mqtt3.runner import Run
from tests.conformance.mqtt3.script import Scenario, load_scenarios
from tests.conformance.mqtt3.targets import ServerTarget

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[3]
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerTarget]:
    """The server under test."""
    address = os.environ.get("LIGHTMQ_CONFORMANCE_ADDRESS")
    if address:
        host, _, port = address.rpartition(":")
        yield ServerTarget(host, int(port))
        return
    folder = tmp_path_factory.mktemp("conformance")
    command = [sys.executable, "-m", "lightmq", "up", "--json", "--data", str(folder / "data")]
    ports = ["--mqtt-port", "0", "--remoting-port", "0", "--admin-port", "0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, *ports], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "log").read_text()
        yield ServerTarget("127.0.0.1", json.loads(line)["mqtt"])
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("scenario", load_scenarios(), ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, server: ServerTarget) -> None:
    """The script goes through against the server."""
    Run(server, f"u{os.getpid()}x{next(NUMBERS)}").play(scenario)
