"""What one connection took with QoS 2 and its successor must not take again."""

from __future__ import annotations

from mqtt_proxy.bridge.received import ReceivedIds
from mqtt_proxy.mqtt import packets
from tests.unit.mqtt_proxy.bridge.rig import publish, running, settle


def test_ids_are_for_the_next_holder_alone() -> None:
    """Of the same epoch, once."""
    received = ReceivedIds()
    received.keep("a", 3, [7, 9])
    assert received.take("b", 3) == ()
    assert received.take("a", 3) == [7, 9]
    assert received.take("a", 3) == ()
    received.keep("a", 3, [7])
    assert received.take("a", 4) == ()
    assert received.take("a", 3) == ()


def test_a_later_word_replaces_an_earlier_one() -> None:
    """Of the same or of a newer epoch; an old connection changes nothing."""
    received = ReceivedIds()
    received.keep("a", 3, [7])
    received.keep("a", 3, [7, 8])
    received.keep("a", 2, [1])
    assert received.take("a", 3) == [7, 8]
    received.keep("a", 3, [7])
    received.keep("a", 3, [])
    assert received.take("a", 3) == ()


def test_the_oldest_are_forgotten() -> None:
    """When there are too many."""
    received = ReceivedIds(ids_max=4)
    for number in range(4):
        received.keep(f"{number}", 1, [1, 2])
    assert [bool(received.take(f"{number}", 1)) for number in range(4)] == [False, False, True, True]


async def test_a_handshake_goes_on_over_connections() -> None:
    """PUBLISH and PUBREC on one connection, the same PUBLISH and PUBREL on the next: stored once."""
    async with running() as rig:
        watcher = await rig.subscriber("watcher", ("t", 0))
        first = await rig.client("a", clean=False)
        first.received()
        first.send(publish("t", b"once", qos=2, packet_id=7))
        await settle()
        assert first.received() == [packets.Pubrec(7)]
        first.lose()
        second = await rig.client("a", clean=False)
        second.send(publish("t", b"once", qos=2, packet_id=7), packets.Pubrel(7))
        await settle()
        assert second.received() == [packets.Connack(True, 0), packets.Pubrec(7), packets.Pubcomp(7)]
        second.send(publish("t", b"next", qos=2, packet_id=7))
        await settle()
        assert [message[1] for message in watcher.messages()] == [b"once", b"next"]


async def test_a_confirmation_after_the_end_counts() -> None:
    """The connection broke before the broker had answered."""
    async with running() as rig:
        watcher = await rig.subscriber("watcher", ("t", 0))
        first = await rig.client("a", clean=False)
        rig.broker.holding = True
        first.send(publish("t", b"once", qos=2, packet_id=7))
        await settle()
        first.lose()
        rig.broker.release()
        await settle()
        second = await rig.client("a", clean=False)
        second.send(publish("t", b"once", qos=2, packet_id=7))
        await settle()
        assert second.received() == [packets.Connack(True, 0), packets.Pubrec(7)]
        assert [message[1] for message in watcher.messages()] == [b"once"]


async def test_another_proxy_in_between_makes_the_memory_void() -> None:
    """The id may have been released and used again there: the message is stored."""
    async with running() as here, running(here.broker) as there:
        watcher = await here.subscriber("watcher", ("t", 0))
        first = await here.client("a", clean=False)
        first.send(publish("t", b"1", qos=2, packet_id=7))
        await settle()
        first.lose()
        between = await there.client("a", clean=False)
        between.send(packets.Pubrel(7))
        await settle()
        between.lose()
        last = await here.client("a", clean=False)
        last.send(publish("t", b"2", qos=2, packet_id=7))
        await settle()
        assert [message[1] for message in watcher.messages()] == [b"1", b"2"]
