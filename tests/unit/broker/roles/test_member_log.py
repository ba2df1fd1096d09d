"""The log of a member: open in one role, closed, open in the next."""

from __future__ import annotations

from pathlib import Path

from broker.config import BrokerConfig
from broker.roles.member_log import MemberLog, Standing
from runtime.faults import FaultPoints
from runtime.logs import get_logger
from tests.support.clock import ManualClock
from tests.unit.broker.conftest import SETTINGS


async def test_the_state_of_the_log_is_known_between_two_roles(tmp_path: Path) -> None:
    failures: list[Exception] = []
    config = BrokerConfig(data_directory=tmp_path, controllers=(), store=SETTINGS)
    data = MemberLog(config, ManualClock(), FaultPoints(), get_logger("test"), failures.append)
    assert (data.store, data.standing()) == (None, Standing())
    store = await data.open("writer", 3)
    assert (store, store.epoch) == (data.store, 3)
    stood = data.standing()
    assert stood.epoch == 3
    data.close()
    assert (data.store, data.is_whole, data.standing()) == (None, True, stood)
    store = await data.open("replica")

    def damaged(_store: object) -> None:
        raise AssertionError("nothing is damaged")

    data.keep_up(store, damaged, lambda: None)
    await data.rest()
    data.close()
    assert data.is_whole
    assert not failures
