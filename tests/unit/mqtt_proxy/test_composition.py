"""The parts of a proxy are created in an order on which a reconnection relies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqtt_proxy.app import make_services
from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.history_steps import StepsAtMaster
from mqtt_proxy.link import Link
from mqtt_proxy.metrics import FrontCounters, ProxyMetrics
from mqtt_proxy.quotas import Quotas
from remoting.client.uplink import Uplink
from runtime.metrics import Registry
from tests.support.clock import ManualClock
from tests.unit.mqtt_proxy.fake_broker import FakeBroker
from tests.unit.mqtt_proxy.rig import FakeAccess


async def test_sessions_are_reopened_before_anything_is_read() -> None:
    """The owners are notified of a new connection first, then the followers of queues, then the pulls."""
    heard: list[str] = []

    class NotingLink(Link):
        def on_up(self, callback: Callable[[], Any]) -> None:
            heard.append(type(getattr(callback, "__self__", None)).__name__)

    link = NotingLink(Uplink(FakeBroker().connect))
    config, registry = ProxyConfig(), Registry()
    services = make_services(
        config,
        link=link,
        history=StepsAtMaster(link),
        access=FakeAccess(),
        quotas=Quotas(config.quotas),
        clock=ManualClock(),
        metrics=ProxyMetrics(registry),
        counters=FrontCounters(registry),
    )
    assert services.owners is not None
    assert heard.index("Owners") < heard.index("Notifier") < heard.index("Puller")
