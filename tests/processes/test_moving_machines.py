"""A cluster moves to new controllers and brokers under load: no send fails and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.moving_machines import measure

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]


def test_no_send_fails_while_everything_moves(tmp_path: Path) -> None:
    """At the end none of the first controllers and brokers runs, and all messages are there, in order."""
    found = measure(tmp_path, rate=1_000.0)
    assert found["failed"] == {"producer": 0, "mqtt": 0}, found["failures"]
    assert min(found["messages"].values()) > 1_000
