"""Reading paused for the broker and for quotas, by a loop whose timers the test fires."""

from __future__ import annotations

import asyncio

from mqtt_proxy.config import QuotaConfig
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.mqtt.codec.packets import Publish
from mqtt_proxy.publishing.pacing import Pacing
from mqtt_proxy.quotas import PublishRates, RatedPublisher
from runtime.clock import ManualClock
from runtime.metrics import Registry

ANN = RatedPublisher("a", "ann", "10.0.0.1")


class Socket:
    """Notes what is asked of it."""

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
    """Ten bytes each."""
    return [Publish(b"topic", b"12345", 0, False, False, 0) for _ in range(count)]


async def test_the_broker_holds_and_releases() -> None:
    """Releasing what is not held does nothing."""
    socket = Socket()
    client, _ = paced(socket)
    client.release()
    client.hold()
    assert not socket.reading
    client.hold()
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


async def test_both_reasons_must_go() -> None:
    """The broker's release does not end a quota's pause, nor the other way round."""
    socket = Socket()
    client, _ = paced(socket, client_messages_per_s=100)
    client.hold()
    client.charge(ANN, messages(101))
    client.release()
    assert not socket.reading
    await asyncio.wait_for(socket.resumed.wait(), 5)
    client.hold()
    client.charge(ANN, messages(101))
    waited = asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, waited.set)
    socket.resumed.clear()
    await waited.wait()
    assert not socket.resumed.is_set()
    client.stop()


async def test_nothing_is_resumed_after_the_end() -> None:
    """Its timer is gone and later calls do nothing."""
    socket = Socket()
    client, _ = paced(socket, client_messages_per_s=100)
    client.charge(ANN, messages(101))
    client.stop()
    client.release()
    client.hold()
    client.charge(ANN, messages(101))
    assert not socket.reading
    assert not socket.resumed.is_set()
