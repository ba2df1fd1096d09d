"""Deliveries to a client of MQTT 5: properties, expiry, identifiers, no local, sizes, aliases."""

from __future__ import annotations

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.packets import Publish
from remoting.protocol.records.properties import MessageProperties
from tests.unit.mqtt_proxy.rig import Rig, Wire, publish, running, settle

FULL = MessageProperties(1, None, b"text/plain", b"answer/to", b"\x00\x01", [(b"b", b"1"), (b"a", b"2"), (b"b", b"3")])


async def sender(rig: Rig, *sent: Publish) -> Wire:
    """A client of level 5 that publishes these packets."""
    client = await rig.client("sender", level=5)
    client.received()
    client.send(*sent)
    await settle()
    return client


def message(
    topic: str, payload: bytes, properties: MessageProperties | None, qos: int = 1, *, retain: bool = False
) -> Publish:
    """A PUBLISH with properties."""
    return Publish(topic.encode(), payload, qos, retain, False, 1 if qos else 0, properties)


def publishes(wire: Wire) -> list[Publish]:
    """The PUBLISH packets the client has received."""
    return [one for one in wire.received() if isinstance(one, Publish)]


async def test_properties_go_through_unaltered() -> None:
    """To a client of level 5 in order, repeated ones included; a client of level 4 gets the message alone."""
    async with running() as rig:
        new = await rig.subscriber("new", ("t", 1), level=5)
        both = await rig.subscriber("both", ("t", 1), ("#", 0), level=5)
        old = await rig.subscriber("old", ("t", 1))
        await sender(rig, message("t", b"x", FULL), Publish(b"t", b"y", 0, False, False, 0))
        for wire in (new, both):
            assert [(one.payload, one.properties) for one in publishes(wire)] == [(b"x", FULL), (b"y", None)]
        assert old.messages() == [("t", b"x", 1, False, False), ("t", b"y", 0, False, False)]


async def test_the_remaining_expiry() -> None:
    """[MQTT-3.3.2-6] reduced by the waiting time; [MQTT-3.3.2-5] an expired message is dropped and counted."""
    async with running() as rig:
        wires = [
            await rig.subscriber("new", ("t", 1), level=5),
            await rig.subscriber("both", ("t", 1), ("#", 1), level=5),
            await rig.subscriber("old", ("t", 1)),
        ]
        for wire in wires:
            wire.handler.on_writable(False)
        short, long = MessageProperties(expiry_s=5), MessageProperties(expiry_s=60)
        await sender(rig, message("t", b"short", short), message("t", b"long", long))
        rig.clock.advance_ms(9_500)
        for wire in wires:
            wire.handler.on_writable(True)
        await settle()
        for wire in wires[:2]:
            assert [(one.payload, one.properties) for one in publishes(wire)] == [
                (b"long", MessageProperties(expiry_s=51))
            ]
        assert wires[2].messages() == [("t", b"long", 1, False, False)]
        assert rig.count("messages_skipped_total{expired}") == 3


async def test_an_expired_retained_message_is_not_sent() -> None:
    """A new subscription gets those still valid, with the remaining expiry."""
    async with running() as rig:
        await sender(
            rig,
            message("t/1", b"short", MessageProperties(expiry_s=5), retain=True),
            message("t/2", b"long", MessageProperties(expiry_s=60), retain=True),
        )
        rig.clock.advance_ms(5_000)
        wire = await rig.client("new", level=5)
        wire.send(packets.Subscribe(1, [("t/#", 1)], {props.SUBSCRIPTION_ID: 7}))
        await settle()
        (got,) = publishes(wire)
        assert (got.payload, got.retain, got.properties) == (b"long", True, MessageProperties(expiry_s=55))
        assert got.subscription_ids == (7,)
        assert rig.count("messages_skipped_total{expired}") == 1


async def test_identifiers_of_overlapping_subscriptions() -> None:
    """[MQTT-3.3.4-2] one copy with the highest QoS and every identifier."""
    async with running() as rig:
        wire = await rig.client("s", level=5)
        for packet_id, (topic_filter, qos, identifier) in enumerate([("t/#", 0, 1), ("t/+", 2, 200), ("#", 1, 0)], 1):
            found = {props.SUBSCRIPTION_ID: identifier} if identifier else None
            wire.send(packets.Subscribe(packet_id, [(topic_filter, qos)], found))
        await settle()
        wire.received()
        await sender(rig, publish("t/x", b"m", 2))
        (got,) = publishes(wire)
        assert (got.qos, sorted(got.subscription_ids)) == (2, [1, 200])


async def test_a_subscription_made_again_changes_its_identifier() -> None:
    """The last SUBSCRIBE counts."""
    async with running() as rig:
        wire = await rig.subscriber("s", ("t", 1), level=5, subscription_id=1)
        wire.send(packets.Subscribe(2, [("t", 0)], {props.SUBSCRIPTION_ID: 2}))
        await settle()
        wire.received()
        await sender(rig, publish("t", b"m"))
        (got,) = publishes(wire)
        assert (got.qos, got.subscription_ids) == (0, (2,))


NO_LOCAL, AS_PUBLISHED = 0x04, 0x08


async def test_no_local() -> None:
    """[MQTT-3.8.3-3] not to its publisher, but to all others, and to the publisher through another subscription."""
    async with running() as rig:
        wire = await rig.subscriber("own", ("t/#", 1 | NO_LOCAL), level=5)
        other = await rig.subscriber("other", ("t/#", 1 | NO_LOCAL), level=5)
        wire.send(publish("t/x", b"mine", retain=True), publish("t/y", b"too", packet_id=2))
        await settle()
        assert publishes(wire) == []
        assert [one.payload for one in publishes(other)] == [b"mine", b"too"]
        wire.send(packets.Subscribe(9, [("t/x", 1)]))
        await settle()
        wire.received()
        wire.send(publish("t/x", b"again", packet_id=3), publish("t/y", b"not", packet_id=4))
        await settle()
        assert [one.payload for one in publishes(wire)] == [b"again"]
        wire.send(packets.Subscribe(10, [("t/#", 1 | NO_LOCAL)]))
        await settle()
        assert publishes(wire) == []  # its own retained message is local too


async def test_the_retain_flag_as_published() -> None:
    """[MQTT-3.3.1-13] kept for a client that asks for it, [MQTT-3.3.1-12] cleared for the others."""
    async with running() as rig:
        asked = await rig.subscriber("asked", ("t", 1 | AS_PUBLISHED), level=5)
        plain = await rig.subscriber("plain", ("t", 1), level=5)
        await sender(rig, publish("t", b"1", retain=True), publish("t", b"2", packet_id=2))
        assert [one.retain for one in publishes(asked)] == [True, False]
        assert [one.retain for one in publishes(plain)] == [False, False]


async def test_a_message_too_large_for_its_client() -> None:
    """[MQTT-3.1.2-25] treated as if it had been delivered, and counted; the others are delivered."""
    async with running() as rig:
        small = {props.MAXIMUM_PACKET_SIZE: 40}
        wires = [
            await rig.subscriber("one", ("t", 1), level=5, properties=small),
            await rig.subscriber("two", ("t", 1), ("#", 1), level=5, properties=small),
        ]
        await sender(rig, publish("t", bytes(60)), publish("t", b"fits", packet_id=2), message("t", b"p", FULL))
        for wire in wires:
            assert [one.payload for one in publishes(wire)] == [b"fits"]
            assert wire.handler._delivery.sources[0].lowest() == 1  # a message that is too large does not delay others
        assert rig.count("messages_skipped_total{too_large_for_client}") == 4


async def test_topic_aliases_are_used_when_the_client_allows_them() -> None:
    """First the name with the number, then the number alone."""
    async with running() as rig:
        wire = await rig.subscriber("s", ("long/#", 0), level=5, properties={props.TOPIC_ALIAS_MAXIMUM: 3})
        await sender(rig, publish("long/topic", b"1"), publish("long/topic", b"2", packet_id=2))
        assert [(one.topic, one.topic_alias) for one in publishes(wire)] == [(b"long/topic", 1), (b"", 1)]


async def test_in_flight_messages_are_resent_with_their_properties() -> None:
    """A resumed session of level 5 gets the same message, even if it has expired since it was first sent."""
    async with running() as rig:
        wire = await rig.subscriber("s", ("t", 1), clean=False, level=5, properties={props.SESSION_EXPIRY: 1_000})
        properties = MessageProperties(0, 30, user=[(b"k", b"v")])
        await sender(rig, message("t", b"m", properties))
        assert len(publishes(wire)) == 1
        wire.lose()
        rig.clock.advance_ms(31_000)
        again = await rig.client("s", clean=False, level=5, properties={props.SESSION_EXPIRY: 1_000})
        (got,) = publishes(again)
        assert (got.dup, got.payload) == (True, b"m")
        assert got.properties == MessageProperties(0, 0, user=[(b"k", b"v")])
