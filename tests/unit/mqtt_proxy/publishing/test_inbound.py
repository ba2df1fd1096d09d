"""A publish that is not allowed: refused in its acknowledgement at level 5, the end of the connection at level 4."""

from __future__ import annotations

import asyncio

from mqtt_proxy.config import QuotaConfig
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.packets import Publish
from mqtt_proxy.publishing.inbound import Pacing
from mqtt_proxy.quotas import PublishRates, RatedPublisher
from runtime.metrics import Registry
from tests.support.clock import ManualClock
from tests.unit.mqtt_proxy.rig import publish, running, settle


async def test_refused_one_by_one_at_level_5() -> None:
    """The others of the read are stored and acknowledged, in order; one with QoS 0 is only counted."""
    async with running() as rig:
        rig.access.forbidden.add(b"secret")
        client = await rig.client("c", level=5)
        client.received()
        sent = [
            publish("a", b"", 1, 1),
            publish("secret", b"", 1, 2),
            publish("secret", b"", 0),
            publish("a", b"", 2, 3),
        ]
        client.send(*sent)
        await settle()
        assert client.received() == [packets.Puback(1), packets.Puback(2, 0x87), packets.Pubrec(3)]
        assert client.closed is None
        assert rig.count("publishes_refused_total{not_authorized}") == 2
        assert rig.count("messages_in_total") == 2


async def test_a_refusal_ends_the_connection_at_level_4() -> None:
    """3.1.1 has no code for it; nothing of that read is stored."""
    async with running() as rig:
        rig.access.forbidden.add(b"secret")
        client = await rig.client("c")
        client.received()
        client.send(publish("a", b"", 1, 1), publish("secret", b"", 1, 2))
        await settle()
        assert client.closed is not None
        assert client.closed.startswith("not_authorized")
        assert client.received() == []
        assert rig.count("messages_in_total") == 0


async def test_payloads_too_large_to_be_retained() -> None:
    """Refused alone at level 5; one with QoS 0 is dropped and counted; a message without RETAIN may be larger."""
    async with running(quotas=QuotaConfig(retained_payload_bytes_max=3)) as rig:
        client = await rig.client("c", level=5)
        client.received()
        client.send(
            publish("a", b"1234", 1, 1, retain=True),
            publish("a", b"1234", 0, retain=True),
            publish("a", b"123", 1, 2, retain=True),
            publish("a", b"12345", 1, 3),
        )
        await settle()
        got = client.received()
        assert [(one.packet_id, one.reason) for one in got] == [(1, 0x97), (2, 0), (3, 0)]
        assert client.closed is None
        assert rig.count("publishes_refused_total{retained_payload}") == 2
        assert [entry.body for entry in rig.broker.appended] == [b"123", b"12345"]


async def test_payloads_too_large_to_be_retained_at_level_4() -> None:
    """There the connection ends."""
    async with running(quotas=QuotaConfig(retained_payload_bytes_max=3)) as rig:
        client = await rig.client("c")
        client.received()
        client.send(publish("a", b"1234", 1, 1, retain=True))
        await settle()
        assert client.closed is not None
        assert client.closed.startswith("quota_exceeded")


async def test_a_delay_that_is_too_long_is_counted() -> None:
    """The session refuses it itself."""
    async with running() as rig:
        client = await rig.client("c", level=5)
        client.received()
        client.send(publish("$delayed/999999999/a", b"", 1, 1))
        await settle()
        assert [(one.packet_id, one.reason) for one in client.received()] == [(1, 0x97)]
        assert rig.count("publishes_refused_total{delay}") == 1
        assert client.flow_in.messages == 1
        assert rig.broker.appended == []


async def test_what_the_broker_refuses_concerns_that_message_alone() -> None:
    """In its acknowledgement at level 5; at level 4 the connection ends."""
    async with running() as rig:
        rig.broker.refused_topic = b"forbidden"
        client = await rig.client("c", level=5)
        client.received()
        client.send(publish("a", b"", 1, 1), publish("forbidden", b"", 1, 2), publish("b", b"", 2, 3))
        await settle()
        got = client.received()
        assert [(one.packet_id, one.reason) for one in got] == [(1, 0), (2, 0x87), (3, 0)]
        assert client.closed is None
        old = await rig.client("old")
        old.received()
        old.send(publish("forbidden", b"", 1, 1))
        await settle()
        assert old.closed is not None
        assert old.closed.startswith("broker_refused")


async def test_clients_of_mqtt_5_learn_of_no_matching_subscribers() -> None:
    """In their acknowledgements, in order; 3.1.1 has no code for it, and nothing else changes for any client."""
    async with running(report_no_subscribers=True) as rig:
        rig.broker.unwanted = {b"lonely"}
        sent = [publish("lonely", b"", 1, 1), publish("t", b"", 1, 2), publish("lonely", b"", 2, 3)]
        for level, codes in ((5, [0x10, 0, 0x10]), (4, [0, 0, 0])):
            client = await rig.client(f"c{level}", level=level)
            client.received()
            client.send(*sent)
            await settle()
            got = client.received()
            assert [(type(one), one.packet_id) for one in got] == [
                (packets.Puback, 1),
                (packets.Puback, 2),
                (packets.Pubrec, 3),
            ]
            assert [one.reason for one in got] == codes
            client.send(packets.Pubrel(3))
            await settle()
            assert client.received() == [packets.Pubcomp(3)]
        assert rig.count("messages_in_total") == 6


ANN = RatedPublisher("a", "ann", "10.0.0.1")


class Socket:
    """Records its calls."""

    def __init__(self) -> None:
        self.reading = True
        self.resumed = asyncio.Event()

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True
        self.resumed.set()


def paced(socket: Socket, **quotas: float) -> tuple[Pacing, ProxyMetrics]:
    """A client with these quotas."""
    metrics = ProxyMetrics(Registry())
    return Pacing(socket, PublishRates(QuotaConfig(**quotas)), ManualClock(), metrics), metrics  # type: ignore[arg-type]


def messages(count: int) -> list[Publish]:
    """Messages of ten bytes each."""
    return [Publish(b"topic", b"12345", 0, False, False, 0) for _ in range(count)]


async def test_the_broker_pauses_and_resumes() -> None:
    """Resuming what is not paused does nothing."""
    socket = Socket()
    client, _ = paced(socket)
    client.release()
    client.pause()
    assert not socket.reading
    client.pause()
    client.release()
    assert socket.reading


async def test_a_quota_pauses_and_time_resumes() -> None:
    """Counted by quota."""
    socket = Socket()
    client, metrics = paced(socket, client_bytes_per_s=1_000)
    client.charge(ANN, messages(100))
    assert socket.reading
    client.charge(ANN, messages(1))
    assert not socket.reading
    assert metrics.publishes.rate_pauses.child("client_bytes").value == 1
    await asyncio.wait_for(socket.resumed.wait(), 5)
    assert socket.reading


async def test_a_client_resumes_when_neither_reason_is_left() -> None:
    """The broker's release does not end a quota's pause, nor the other way round."""
    socket = Socket()
    client, _ = paced(socket, client_messages_per_s=100)
    client.pause()
    client.charge(ANN, messages(101))
    client.release()
    assert not socket.reading
    await asyncio.wait_for(socket.resumed.wait(), 5)
    client.pause()
    client.charge(ANN, messages(101))
    waited = asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, waited.set)
    socket.resumed.clear()
    await waited.wait()
    assert not socket.resumed.is_set()
    client.stop()


async def test_nothing_is_resumed_after_the_end() -> None:
    """Its timer is cancelled and later calls do nothing."""
    socket = Socket()
    client, _ = paced(socket, client_messages_per_s=100)
    client.charge(ANN, messages(101))
    client.stop()
    client.release()
    client.pause()
    client.charge(ANN, messages(101))
    assert not socket.reading
    assert not socket.resumed.is_set()
