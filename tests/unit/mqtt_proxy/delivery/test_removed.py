"""Messages a session was not given, counted in total and for each session."""

from __future__ import annotations

from mqtt_proxy.delivery.outbound import Removed
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.codec.packets import Publish
from remoting.protocol.records.properties import MessageProperties
from runtime.metrics import Registry
from tests.unit.mqtt_proxy.rig import publish, running, settle


def test_counted_twice_and_handed_over_once() -> None:
    """Reasons without messages are left out."""
    metrics = ProxyMetrics(Registry())
    removed = Removed(metrics)
    assert removed.take() == []
    removed.count("retention", 3)
    removed.count("expired")
    removed.count("retention", 2)
    removed.count("log_shorter", 0)
    assert removed.take() == [("expired", 1), ("retention", 5)]
    assert removed.take() == []
    assert metrics.deliveries.skipped("retention").value == 5


async def test_the_broker_is_told_when_the_connection_ends() -> None:
    """What expired while a durable session was slow, and what retention removed."""
    async with running() as rig:
        client = await rig.subscriber("a", ("t", 1), clean=False)
        client.handler.on_writable(False)
        sender = await rig.client("sender", level=5)
        sender.send(Publish(b"t", b"short", 1, False, False, 1, MessageProperties(expiry_s=5)), publish("t", b"x"))
        await settle()
        rig.clock.advance_ms(10_000)
        client.handler.on_writable(True)
        await settle()
        assert [payload for _, payload, *_ in client.messages()] == [b"x"]
        client.lose()
        await settle()
        assert rig.broker.closed[-1].removed == [("expired", 1)]


async def test_what_retention_removed_before_the_session_read_it() -> None:
    """The oldest messages no longer exist when it returns."""
    async with running() as rig:
        (await rig.subscriber("a", ("t", 1), clean=False)).lose()
        sender = await rig.client("sender")
        sender.send(*(publish("t", b"%d" % number, packet_id=number) for number in range(1, 6)))
        await settle()
        queue = next(queue for name, queue in rig.broker.queues.items() if name.endswith(b"%t"))
        rig.broker.trim(queue, 3)
        back = await rig.client("a", clean=False)
        await settle()
        assert [payload for _, payload, *_ in back.messages()] == [b"4", b"5"]
        back.lose()
        await settle()
        assert rig.broker.closed[-1].removed == [("retention", 3)]
