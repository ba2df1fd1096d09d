"""Rules that change under connected clients, and while clients are away."""

from __future__ import annotations

from mqtt_proxy.mqtt.codec import packets
from remoting.protocol.frames.codes import RequestCode
from tests.unit.mqtt_proxy.rig import Rig, publish, running, settle


def forbid(rig: Rig, *topics: bytes) -> None:
    """Put new rules in force."""
    rig.access.forbidden.update(topics)
    rig.services.owners.rules_changed()


async def test_a_revoked_subscription_stops_at_once() -> None:
    """Before the broker has answered; the others continue, and the broker forgets the filter."""
    async with running() as rig:
        subscriber = await rig.subscriber("s", ("t/#", 1), ("u", 1), clean=False)
        publisher = await rig.client("p")
        publisher.send(publish("t/1", b"before"))
        await settle()
        assert [one[1] for one in subscriber.messages()] == [b"before"]
        publisher.send(publish("t/1", b"after", packet_id=2), publish("u", b"other", packet_id=3))
        forbid(rig, b"t/#")  # the message is at the broker already, the notification is not here yet
        await settle()
        assert [one[1] for one in subscriber.messages()] == [b"other"]
        assert set(rig.broker.sessions["s"].subscriptions) == {"u"}
        assert rig.count("subscriptions_revoked_total") == 1
        assert subscriber.closed is None


async def test_a_publisher_is_judged_again() -> None:
    """What was cached for the topic is forgotten."""
    async with running() as rig:
        publisher = await rig.client("p")
        publisher.send(publish("t", b"1"))
        await settle()
        forbid(rig, b"t")
        publisher.send(publish("t", b"2", packet_id=2))
        await settle()
        assert publisher.closed is not None
        assert publisher.closed.startswith("not_authorized")


async def test_rules_that_change_while_a_subscribe_is_under_way() -> None:
    """It was judged by the old rules and must not outlive them."""
    async with running() as rig:
        subscriber = await rig.client("s", clean=False)
        publisher = await rig.client("p")
        subscriber.received()
        subscriber.send(packets.Subscribe(1, [("t", 1)]))
        while RequestCode.SUBSCRIBE not in rig.broker.codes:
            await settle(1)
        forbid(rig, b"t")
        await settle()
        publisher.send(publish("t", b"x"))
        rig.access.forbidden.clear()
        await settle()
        assert subscriber.messages() == []
        assert rig.broker.sessions["s"].subscriptions == {}


async def test_a_stored_session_is_judged_when_it_is_resumed() -> None:
    """Its subscription, what it had not acknowledged, and the retained messages still due to it."""
    async with running() as rig:
        publisher = await rig.client("p")
        subscriber = await rig.subscriber("s", ("t/#", 1), ("u/#", 1), clean=False)
        publisher.send(publish("t/1", b"t"), publish("u/1", b"u", packet_id=2))
        await settle()
        assert len(subscriber.messages()) == 2
        subscriber.lose()
        await settle()
        rig.access.forbidden.update((b"t/#", b"t/1"))
        publisher = await rig.client("p2")
        publisher.send(publish("u/1", b"u2", packet_id=2))
        again = await rig.client("s", clean=False)
        await settle()
        assert [(one[1], one[4]) for one in again.messages()] == [(b"u", True), (b"u2", False)]
        assert set(rig.broker.sessions["s"].subscriptions) == {"u/#"}
        assert rig.count("messages_skipped_total{not_authorized}") == 1


async def test_retained_messages_are_judged_by_their_topic() -> None:
    """The filter may be read, one of its retained messages may not."""
    async with running() as rig:
        publisher = await rig.client("p")
        publisher.send(publish("t/1", b"1", retain=True), publish("t/2", b"2", packet_id=2, retain=True))
        await settle()
        rig.access.forbidden.add(b"t/1")
        subscriber = await rig.client("s")
        subscriber.send(packets.Subscribe(1, [("t/#", 1)]))
        await settle()
        assert subscriber.messages() == [("t/2", b"2", 1, True, False)]
        assert rig.count("messages_skipped_total{not_authorized}") == 1


async def test_a_subscription_is_granted_what_the_rules_allow() -> None:
    """The SUBACK has the lower QoS, and so have the deliveries."""
    async with running() as rig:
        rig.access.qos_max = 0
        subscriber = await rig.client("s")
        subscriber.received()
        subscriber.send(packets.Subscribe(1, [("t", 1)]))
        await settle()
        assert subscriber.received() == [packets.Suback(1, [0])]
        publisher = await rig.client("p")
        publisher.send(publish("t", b"x"))
        await settle()
        assert subscriber.messages() == [("t", b"x", 0, False, False)]


async def test_a_will_is_judged_when_it_is_published() -> None:
    """It was allowed at CONNECT."""
    async with running() as rig:
        watcher = await rig.subscriber("w", ("wills", 1))
        client = await rig.client("a", will=packets.Will(b"wills", b"gone", 1, False))
        forbid(rig, b"wills")
        watcher = await rig.client("w2")
        rig.access.forbidden.clear()
        watcher.send(packets.Subscribe(1, [("wills", 1)]))
        await settle()
        rig.access.forbidden.add(b"wills")
        client.lose()
        await settle()
        assert watcher.messages() == []
        assert rig.count("wills_failed_total{not_authorized}") == 1
