"""Every controller and broker is restarted in turn under load, and no send fails (`rolling_restart`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.rolling_restart import measure

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(400)]


def test_no_send_fails_while_everything_is_restarted_in_turn(tmp_path: Path) -> None:
    """1,000 messages a second from a producer and MQTT devices; `measure` also checks order and loss."""
    found = measure(tmp_path, controllers=3, brokers=3, rate=1_000)
    assert len(found["restarts"]) == 6
    assert found["failed"] == {"producer": 0, "mqtt": 0}, found["failures"]


def test_nor_where_brokers_elect_their_master(tmp_path: Path) -> None:
    """The one name server is restarted as well: it decides nothing, and clients know the group meanwhile."""
    found = measure(tmp_path, controllers=1, brokers=3, rate=1_000, mode="dledger")
    assert len(found["restarts"]) == 4
    assert found["failed"] == {"producer": 0, "mqtt": 0}, found["failures"]
