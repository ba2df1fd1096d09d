"""Quotas as a client meets them."""

from __future__ import annotations

from mqtt_proxy.config import QuotaConfig
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.properties import SERVER_KEEP_ALIVE
from tests.unit.mqtt_proxy.rig import publish, running, settle


async def test_a_user_cannot_have_one_client_too_many() -> None:
    """CONNACK 3; accepted again once there is room."""
    async with running(quotas=QuotaConfig(connections_per_user_max=1)) as rig:
        first = await rig.client("a", username="ann")
        second = await rig.client("b", username="ann")
        assert second.received() == [packets.Connack(False, 3)]
        assert rig.count("connects_refused_total{connections_per_user_max}") == 1
        second.close("refused")
        assert (await rig.client("c", username="bob")).received() == [packets.Connack(False, 0)]
        first.lose()
        assert (await rig.client("b", username="ann")).received() == [packets.Connack(False, 0)]


async def test_a_client_that_connects_again_does_not_count_twice() -> None:
    """Take-over works at the limit."""
    async with running(quotas=QuotaConfig(connections_per_user_max=1)) as rig:
        old = await rig.client("a", username="ann")
        new = await rig.client("a", username="ann")
        assert old.closed is not None
        assert new.received() == [packets.Connack(False, 0)]
        new.lose()
        assert (await rig.client("b", username="ann")).received() == [packets.Connack(False, 0)]


async def test_above_the_publish_rate_reading_pauses() -> None:
    """Flow control without loss."""
    async with running(quotas=QuotaConfig(client_messages_per_s=2)) as rig:
        client = await rig.client("a")
        client.received()
        client.send(*(publish("t", b"%d" % number, packet_id=number) for number in (1, 2, 3)))
        await settle()
        assert client.received() == [packets.Puback(1), packets.Puback(2), packets.Puback(3)]
        assert not client.reading
        assert rig.count("rate_pauses_total{client_messages}") == 1


async def test_filters_that_are_too_wide_are_refused_alone() -> None:
    """0x80 for that filter, the others are granted."""
    async with running(quotas=QuotaConfig(filters_refused=("#",))) as rig:
        client = await rig.client("a")
        client.received()
        client.send(packets.Subscribe(1, [("#", 1), ("a/#", 1)]))
        await settle()
        assert client.received() == [packets.Suback(1, [0x80, 1])]
        assert rig.count("subscriptions_refused_total{too_wide}") == 1


async def test_a_longer_keep_alive_is_shortened() -> None:
    """A client without one is closed when it is silent for too long."""
    async with running(quotas=QuotaConfig(keep_alive_s_max=20)) as rig:
        client = await rig.client("a")
        assert client.session.tick(30_000)
        assert client.session.state.close_reason == "keep_alive_timeout"


async def test_a_client_of_mqtt_5_is_told_its_keep_alive() -> None:
    """One that asked for none gets the limit; a shorter one stays and is not repeated."""
    async with running(quotas=QuotaConfig(keep_alive_s_max=20)) as rig:
        client = await rig.client("a", level=5)
        (connack,) = client.received()
        assert connack.properties[SERVER_KEEP_ALIVE] == 20
        assert client.session.state.terms.keep_alive_s == 20


async def test_a_filter_that_is_too_wide_has_a_code_of_its_own() -> None:
    """Also inside a shared subscription."""
    async with running(quotas=QuotaConfig(filters_refused=("#",))) as rig:
        client = await rig.client("a", level=5)
        client.received()
        client.send(packets.Subscribe(1, [("#", 1), ("$share/g/+/#", 1)]))
        await settle()
        assert client.received() == [packets.Suback(1, [0x8F, 0x8F])]
