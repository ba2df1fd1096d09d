"""From CONNECT to a session: what is known at once, what has to be fetched, and clients that leave meanwhile."""

from __future__ import annotations

from mqtt_proxy.mqtt.codec import packets
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from tests.unit.mqtt_proxy.rig import Wire, running, settle


async def test_a_client_whose_identity_takes_time_connects_later() -> None:
    async with running() as rig:
        rig.access.at_once = False
        wire = Wire(rig)
        wire.send(packets.Connect("a", True, 0))
        assert len(rig.services.tasks) == 1
        await settle()
        assert wire.received() == [packets.Connack(False, 0)]


async def test_a_client_that_leaves_before_that_costs_the_broker_nothing() -> None:
    async with running() as rig:
        rig.access.at_once = False
        wire = Wire(rig)
        wire.send(packets.Connect("a", True, 0))
        wire.lose()
        await settle()
        assert not rig.broker.opened
        assert not rig.services.tasks


async def test_what_was_in_flight_is_resent_first() -> None:
    """It has to be read first, so the CONNACK comes later."""
    async with running() as rig:
        reader = await rig.subscriber("r", ("t", 1), clean=False)
        writer = await rig.client("w")
        writer.send(packets.Publish(b"t", b"x", 1, False, False, 1))
        await settle()
        assert len(reader.messages()) == 1
        reader.lose()
        again = await rig.client("r", clean=False)
        connack, message = again.received()
        assert connack == packets.Connack(True, 0)
        assert (message.payload, message.dup) == (b"x", True)


async def test_refused_at_once() -> None:
    async with running() as rig:
        wire = Wire(rig)
        wire.send(packets.Connect("a", True, 0, "denied", b""))
        assert wire.received() == [packets.Connack(False, 4)]
        assert rig.count("connects_refused_total{authentication}") == 1


async def test_in_flight_is_resent_when_the_session_now_ends_with_its_connection() -> None:
    """A client of MQTT 5 resumes its session, this time without an expiry: what it has not acknowledged is due."""
    async with running() as rig:
        reader = await rig.subscriber("r", ("t", 1), clean=False)
        writer = await rig.client("w")
        writer.send(packets.Publish(b"t", b"x", 1, False, False, 1))
        await settle()
        assert len(reader.messages()) == 1
        reader.lose()
        again = await rig.client("r", clean=False, level=5)
        assert [(payload, dup) for _topic, payload, _qos, _retain, dup in again.messages()] == [(b"x", True)]


async def test_a_session_is_given_back_when_what_was_in_flight_cannot_be_read() -> None:
    """With its note, so the next connection resends it; without that the broker would keep it as a live one."""
    async with running() as rig:
        reader = await rig.subscriber("r", ("t", 1), clean=False)
        writer = await rig.client("w")
        writer.send(packets.Publish(b"t", b"x", 1, False, False, 1))
        await settle()
        reader.lose()
        await settle()
        before = len(rig.broker.closed)
        rig.broker.refuse[RequestCode.MULTI_PULL] = [Refused(2, "busy")]
        wire = Wire(rig)
        wire.send(packets.Connect("r", False, 0))
        await settle()
        assert wire.received() == [packets.Connack(False, 3)]
        assert [(one.client_id, one.epoch) for one in rig.broker.closed[before:]] == [
            ("r", rig.broker.sessions["r"].epoch)
        ]
        again = await rig.client("r", clean=False)
        assert [(message.payload, message.dup) for message in again.received()[1:]] == [(b"x", True)]
