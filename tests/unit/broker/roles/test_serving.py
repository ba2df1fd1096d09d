"""What answers requests around an open log: starts, works, rests, and leaves the log to others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.config import BrokerConfig
from broker.roles.serving import Serving, client_host, make_server, readers_impossible, upkeep
from broker.store.errors import StoreFailed
from broker.store.log_store import LogStore
from remoting.client.connection import dial
from remoting.protocol.frames.codes import RequestCode
from remoting.server.access import Access
from remoting.server.router import Router
from runtime.clock import SystemClock
from runtime.faults import FaultPoints
from runtime.logs import get_logger
from runtime.metrics import Registry
from tests.unit.broker.roles.cluster import STORE, until

LOG = get_logger("test")


def make(directory: Path, **options) -> Serving:
    config = BrokerConfig(data_directory=directory, controllers=(), store=STORE, maintain_interval_ms=50, **options)
    loop = asyncio.get_running_loop()
    store = LogStore.open(
        directory, STORE, clock=SystemClock(), faults=FaultPoints(), schedule=loop.call_soon_threadsafe, log=LOG
    )
    return Serving(config, store, SystemClock(), Registry(), LOG, dial)


async def test_it_works_until_it_rests_and_the_log_stays_open(tmp_path: Path) -> None:
    """Upkeep runs meanwhile; a second one on the same log counts on in the same metrics."""
    serving = make(tmp_path)
    rounds: list[int] = []
    serving.broker.maintain = rounds.append  # type: ignore[method-assign]
    serving.start()
    serving.announce("h", 4711, ())
    serving.tell_address("h", 4712)
    assert serving.broker.tools.identity.address == "h:4712"
    assert RequestCode.APPEND_MANY in serving.handlers
    await until(lambda: len(rounds) > 1)
    await serving.leave()
    await serving.rest()
    seen = len(rounds)
    await asyncio.sleep(0)
    assert len(rounds) == seen
    assert serving.store.refusal is None
    await serving.stop()
    assert serving.store.refusal is not None


async def test_upkeep_that_fails_is_said_and_goes_on(tmp_path: Path) -> None:
    """The next round may go well."""
    serving = make(tmp_path)
    calls: list[str] = []

    class Log:
        def error(self, event: str, **_fields: object) -> None:
            calls.append(event)

    def fail() -> None:
        raise StoreFailed("for the test")

    await upkeep(serving.store, 1, 0.1, Log(), fail)
    await upkeep(serving.store, 1, 0.1, Log())
    assert calls == ["upkeep_failed"]
    await serving.stop()


@pytest.mark.parametrize(
    ("host", "told"), [("0.0.0.0", "127.0.0.1"), ("", "127.0.0.1"), ("::", "127.0.0.1"), ("h", "h")]
)
def test_clients_are_told_an_address_they_can_dial(host: str, told: str) -> None:
    """Listening everywhere is no address."""
    assert client_host(host) == told


async def test_a_port_takes_its_limits_from_the_configuration() -> None:
    """As many connections as configured."""
    server = make_server(BrokerConfig(), Router({}), Access())
    assert await server.start("127.0.0.1", 0) > 0
    await server.stop()
    assert readers_impossible() in ("", "this processor does not keep loads and stores in order")
