"""A will is a publish of a connection that is gone."""

from __future__ import annotations

from mqtt_proxy.bridge.wills import publish_will
from mqtt_proxy.mqtt.packets import Will
from remoting.protocol.codes import RequestCode
from remoting.protocol.errors import Refused
from tests.unit.mqtt_proxy.bridge.rig import running


async def test_published_retained_or_refused() -> None:
    """Counted either way; a retained will is kept as any retained message."""
    async with running() as rig:
        publish_will(rig.services.publisher, "a", Will(b"w", b"gone", 1, True), rig.metrics)
        await rig.services.publisher.drain()
        assert rig.count("wills_total") == 1
        assert b"w" in rig.broker.retained
        rig.broker.refuse[RequestCode.APPEND_MANY] = [Refused(14, "disk full")]
        publish_will(rig.services.publisher, "a", Will(b"w", b"gone", 1, False), rig.metrics)
        await rig.services.publisher.drain()
        assert rig.count("wills_failed_total{broker_refused}") == 1
