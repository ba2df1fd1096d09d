"""The log of a member is opened and closed for one role after the other, and how it stood is known in between."""

from __future__ import annotations

from pathlib import Path

from broker.config import BrokerConfig
from broker.roles.member_log import MemberLog, Standing
from runtime.clock import ManualClock
from runtime.faults import FaultPoints
from runtime.logs import get_logger
from tests.unit.broker.conftest import SETTINGS


async def test_how_the_log_stands_is_known_between_two_roles(tmp_path: Path) -> None:
    failures: list[Exception] = []
    config = BrokerConfig(data_directory=tmp_path, controllers=(), store=SETTINGS)
    data = MemberLog(config, ManualClock(), FaultPoints(), get_logger("test"), failures.append)
    assert (data.store, data.standing()) == (None, Standing())
    store = await data.open("writer", 3)
    assert (store, store.epoch) == (data.store, 3)
    stood = data.standing()
    assert stood.epoch == 3
    assert data.close() is None
    assert (data.store, data.standing()) == (None, stood)
    store = await data.open("replica")

    async def damaged(_store: object) -> None:
        raise AssertionError("nothing is damaged")

    data.keep_up(store, damaged)
    await data.rest()
    assert data.close() is None
    assert not failures
