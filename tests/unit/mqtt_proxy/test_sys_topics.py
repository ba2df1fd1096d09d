"""`$SYS` as a client sees it; the tests run the rounds themselves."""

from __future__ import annotations

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.properties import SUBSCRIPTION_ID
from tests.unit.mqtt_proxy.rig import Rig, Wire, publish, running, settle

UPTIME = "$SYS/broker/uptime"


def round_of(rig: Rig, seconds: int = 10) -> None:
    """What the timer does."""
    rig.clock.advance_ms(seconds * 1_000)
    rig.sys_tree._tick()


async def subscribed(rig: Rig, client_id: str, topic_filter: str, *, clean: bool = True) -> Wire:
    client = await rig.client(client_id, clean=clean)
    client.received()
    client.send(packets.Subscribe(1, [(topic_filter, 1)]))
    await settle()
    return client


async def test_values_come_as_retained_after_the_suback() -> None:
    """At QoS 0, whatever was granted."""
    async with running() as rig:
        rig.sys_tree.start()
        client = await subscribed(rig, "a", "$SYS/broker/uptime")
        got = client.received()
        assert got[0] == packets.Suback(1, [1])
        assert [(one.topic, one.payload, one.qos, one.retain) for one in got[1:]] == [
            (UPTIME.encode(), b"0 seconds", 0, True)
        ]


async def test_only_changes_follow_without_the_retain_flag() -> None:
    """An unchanged value is not repeated."""
    async with running() as rig:
        rig.sys_tree.start()
        client = await subscribed(rig, "a", "$SYS/broker/+")
        assert {topic for topic, *_ in client.messages()} >= {UPTIME, "$SYS/broker/version"}
        round_of(rig)
        assert client.messages() == [(UPTIME, b"10 seconds", 0, False, False)]
        round_of(rig, 0)
        assert client.messages() == []


async def test_a_slow_subscriber_gets_the_newest_when_it_reads_again() -> None:
    """One message for two rounds."""
    async with running() as rig:
        rig.sys_tree.start()
        client = await subscribed(rig, "a", UPTIME)
        client.received()
        client.handler.on_writable(False)
        round_of(rig)
        round_of(rig)
        assert client.messages() == []
        client.handler.on_writable(True)
        round_of(rig)
        assert client.messages() == [(UPTIME, b"30 seconds", 0, False, False)]


async def test_wildcards_in_the_first_level_do_not_match() -> None:
    """Neither at SUBSCRIBE nor later [MQTT-4.7.2-1]."""
    async with running() as rig:
        rig.sys_tree.start()
        client = await subscribed(rig, "a", "#")
        round_of(rig)
        assert client.messages() == []
        assert len(rig.sys_tree) == 0


async def test_unsubscribing_and_leaving_end_it() -> None:
    """The values of a filter without a subscriber are not followed."""
    async with running() as rig:
        rig.sys_tree.start()
        client = await subscribed(rig, "a", UPTIME)
        other = await subscribed(rig, "b", UPTIME)
        client.send(packets.Unsubscribe(2, [UPTIME]))
        await settle()
        client.received()
        other.lose()
        round_of(rig)
        assert client.messages() == []
        assert len(rig.sys_tree) == 0


async def test_subscribing_again_sends_the_values_again() -> None:
    """As for any retained message [MQTT-3.8.4-3]."""
    async with running() as rig:
        rig.sys_tree.start()
        client = await subscribed(rig, "a", UPTIME)
        client.received()
        client.send(packets.Subscribe(2, [(UPTIME, 0)]))
        await settle()
        assert client.messages() == [(UPTIME, b"0 seconds", 0, True, False)]


async def test_a_durable_session_gets_them_again_when_it_comes_back() -> None:
    """The broker kept its filter."""
    async with running() as rig:
        rig.sys_tree.start()
        client = await subscribed(rig, "a", UPTIME, clean=False)
        client.lose()
        await settle()
        back = await rig.client("a", clean=False)
        got = back.received()
        assert got[0] == packets.Connack(True, 0)
        assert [one.topic for one in got[1:]] == [UPTIME.encode()]
        round_of(rig)
        assert back.messages() == [(UPTIME, b"10 seconds", 0, False, False)]


async def test_the_brokers_numbers() -> None:
    """New subscribers get them once they are known, others in the next round; an unreadable answer is ignored."""
    async with running() as rig:
        early = await subscribed(rig, "early", "$SYS/broker/clients/total")
        rig.broker.status = b'{"clients_total": 41}'
        rig.sys_tree.start()
        await settle()
        client = await subscribed(rig, "a", "$SYS/broker/clients/total")
        assert client.messages() == [("$SYS/broker/clients/total", b"41", 0, True, False)]
        assert early.messages() == []
        rig.broker.status = b"{"
        round_of(rig)
        assert early.messages() == [("$SYS/broker/clients/total", b"41", 0, False, False)]
        client.received()
        await settle()
        round_of(rig)
        assert client.messages() == early.messages() == []


async def test_an_interval_of_zero_serves_nothing() -> None:
    """The filter is granted all the same."""
    async with running(sys_interval_s=0) as rig:
        rig.sys_tree.start()
        client = await subscribed(rig, "a", "$SYS/#")
        assert client.received() == [packets.Suback(1, [1])]
        rig.sys_tree.stop()


async def test_values_do_not_reach_the_broker() -> None:
    """None of them is in the log, and an ordinary message still is."""
    async with running() as rig:
        rig.sys_tree.start()
        client = await subscribed(rig, "a", "$SYS/#")
        client.send(publish("t", b"x", packet_id=9))
        round_of(rig)
        await settle()
        assert [entry.mqtt_topic for entry in rig.broker.appended] == [b"t"]


async def test_identifiers_and_retain_handling_of_mqtt_5() -> None:
    """Values at SUBSCRIBE only where they are requested; a change comes once, with the identifiers of all filters."""
    async with running() as rig:
        rig.sys_tree.start()
        client = await rig.client("a", level=5)
        client.received()
        only_new, never = 1 << 4, 2 << 4
        asked = [(UPTIME, never, 0), ("$SYS/broker/uptime/#", only_new, 1), ("$SYS/broker/uptime/#", only_new, 0)]
        for number, (topic_filter, options, values) in enumerate(asked, 1):
            client.send(packets.Subscribe(number, [(topic_filter, options)], {SUBSCRIPTION_ID: number}))
            await settle()
            got = [one for one in client.received() if isinstance(one, packets.Publish)]
            assert [one.subscription_ids for one in got] == [(number,)] * values
        round_of(rig)
        (changed,) = [one for one in client.received() if isinstance(one, packets.Publish)]
        assert (changed.topic, changed.retain, set(changed.subscription_ids)) == (UPTIME.encode(), False, {1, 3})
