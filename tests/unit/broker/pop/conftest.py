"""A broker whose limits of POP are soon reached."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.config import LimitsConfig
from tests.support.clock import ManualClock
from tests.unit.broker.conftest import BrokerBench


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[BrokerBench]:
    """A broker where one request can wait, and a group can have two messages of a queue in flight."""
    limits = LimitsConfig(pop_in_flight_max=2, parked_requests_max=1)
    bench = BrokerBench(tmp_path / "limited", ManualClock(), limits=limits)
    yield bench
    bench.store.close()
