"""QoS 2 of a durable session: every step is stored by the broker before the peer sees it, and continues after a
loss."""

from __future__ import annotations

import pytest

from mqtt_proxy.delivery import delivery
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.properties import SESSION_EXPIRY
from mqtt_proxy.sessions import qos2 as module
from remoting.protocol.bodies.session_body import PHASE_PUBLISH, PHASE_PUBREL, SHARED_BIT
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode
from tests.unit.mqtt_proxy.rig import Rig, Wire, publish, running, settle
from tests.unit.mqtt_proxy.shared_world import message


async def subscribed(rig: Rig, *, clean: bool = False) -> Wire:
    """A subscriber of QoS 2 and one message for it, confirmed."""
    client = await rig.subscriber("a", ("t", 2), clean=clean)
    sender = await rig.client("p")
    sender.send(publish("t", b"once", qos=2, packet_id=5))
    await settle()
    return client


def others(wire: Wire) -> list[object]:
    return [one for one in wire.received() if not isinstance(one, packets.Publish)]


async def test_each_outgoing_step_is_stored_before_it_is_sent() -> None:
    async with running() as rig:
        refusal = Refused(14, "disk full")
        rig.broker.refuse[RequestCode.SESSION_FLOW] = [refusal]
        client = await subscribed(rig)
        assert client.messages() == []
        exact = rig.services.exact
        exact._ripe()
        await settle()
        assert client.messages() == [("t", b"once", 2, False, False)]
        session = rig.broker.sessions["a"]
        ((queue_id, offset, phase),) = session.exact.values()
        assert (phase, session.exact_below) == (0, {queue_id: offset + 1})
        rig.broker.refuse[RequestCode.SESSION_FLOW] = [refusal]
        client.send(packets.Pubrec(1))
        await settle()
        assert client.received() == []
        exact._ripe()
        await settle()
        assert client.received() == [packets.Pubrel(1)]
        assert session.exact == {1: (queue_id, offset, PHASE_PUBREL)}
        client.send(packets.Pubcomp(1))
        await settle()
        assert session.exact == {1: (queue_id, offset, PHASE_PUBREL)}, "the step does not wait for it"
        exact._ripe()
        await settle()
        assert session.exact == {}


@pytest.mark.parametrize("level", [4, 5])
async def test_messages_of_any_qos_follow_one_whose_step_is_not_stored_yet(level: int) -> None:
    """A topic's messages arrive as they were stored, whichever of them have to be noted first."""
    async with running() as rig:
        kept = {SESSION_EXPIRY: 100} if level == 5 else None
        client = await rig.subscriber("a", ("t", 2), clean=False, level=level, properties=kept)
        sender = await rig.client("p")
        rig.broker.refuse[RequestCode.SESSION_FLOW] = [Refused(14, "disk full")]
        sender.send(*[publish("t", b"%d" % number, qos=number % 3, packet_id=number + 1) for number in range(9)])
        await settle()
        assert client.messages() == [("t", b"0", 0, False, False), ("t", b"1", 1, False, False)]
        rig.services.exact._ripe()
        await settle()
        assert [payload for _topic, payload, *_ in client.messages()] == [b"%d" % number for number in range(2, 9)]


async def test_what_stands_behind_an_unnoted_step_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further messages stay in the log; none is lost, and the order is that of the log."""
    monkeypatch.setattr(delivery, "PORTION_MESSAGES_MAX", 16)
    async with running() as rig:
        client = await rig.subscriber("a", ("t", 2), clean=False)
        sender = await rig.client("p")
        rig.broker.refuse[RequestCode.SESSION_FLOW] = [Refused(14, "disk full")]
        sender.send(publish("t", b"0", qos=2, packet_id=1))
        sender.send(*[publish("t", b"%d" % number + bytes(9_999), qos=0) for number in range(1, 200)])
        await settle(400)
        assert client.messages() == []
        assert client.handler._delivery.sources[0].cursor < 100
        rig.services.exact._ripe()
        await settle(400)
        got = [payload.rstrip(b"\0") for _topic, payload, *_ in client.messages()]
        assert got == [b"%d" % number for number in range(200)]


async def test_an_incoming_pubcomp_is_sent_behind_the_removal_of_its_id() -> None:
    async with running() as rig:
        client = await rig.client("a", clean=False)
        client.send(publish("t", b"once", qos=2, packet_id=7))
        await settle()
        assert others(client)[1:] == [packets.Pubrec(7)]
        assert rig.broker.sessions["a"].received == {7}
        rig.broker.refuse[RequestCode.SESSION_FLOW] = [Refused(14, "disk full")]
        client.send(packets.Pubrel(7))
        await settle()
        assert client.received() == []
        rig.services.exact._ripe()
        await settle()
        assert client.received() == [packets.Pubcomp(7)]
        assert rig.broker.sessions["a"].received == set()


async def test_a_session_that_ends_with_its_connection_stores_no_steps() -> None:
    async with running() as rig:
        client = await subscribed(rig, clean=True)
        assert client.messages() == [("t", b"once", 2, False, False)]
        client.send(packets.Pubrec(1), publish("x", b"", qos=2, packet_id=9))
        await settle()
        assert client.received() == [packets.Pubrel(1), packets.Pubrec(9)]
        client.send(packets.Pubcomp(1), packets.Pubrel(9))
        await settle()
        assert client.received() == [packets.Pubcomp(9)]
        assert rig.broker.flows == []


async def test_an_incoming_handshake_continues_over_connections_and_proxies() -> None:
    """PUBLISH and PUBREC here, the same PUBLISH and PUBREL there: stored once."""
    async with running() as here, running(here.broker) as there:
        watcher = await here.subscriber("watcher", ("t", 0))
        first = await here.client("a", clean=False)
        first.send(publish("t", b"once", qos=2, packet_id=7))
        await settle()
        assert others(first)[1:] == [packets.Pubrec(7)]
        second = await there.client("a", clean=False)
        second.send(publish("t", b"once", qos=2, packet_id=7), packets.Pubrel(7))
        await settle()
        assert second.received() == [packets.Connack(True, 0), packets.Pubrec(7), packets.Pubcomp(7)]
        second.send(publish("t", b"next", qos=2, packet_id=7))
        await settle()
        assert [message[1] for message in watcher.messages()] == [b"once", b"next"]


async def test_a_confirmation_after_the_end_counts() -> None:
    """The connection broke before the broker had answered; the pending steps leave before the session is given back."""
    async with running() as rig:
        watcher = await rig.subscriber("watcher", ("t", 0))
        first = await rig.client("a", clean=False)
        rig.broker.holding = True
        for number in range(1, 5):
            first.send(publish("t", b"%d" % number, qos=2, packet_id=number))
            await settle(3)
        first.lose()
        rig.broker.release()
        await settle()
        second = await rig.client("a", clean=False)
        second.send(*[publish("t", b"%d" % number, qos=2, packet_id=number) for number in range(1, 5)])
        await settle()
        assert second.received() == [packets.Connack(True, 0), *[packets.Pubrec(number) for number in range(1, 5)]]
        assert [message[1] for message in watcher.messages()] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("orderly", [True, False], ids=["closed", "proxy gone"])
async def test_an_outgoing_handshake_continues_at_another_proxy(orderly: bool) -> None:
    """What was received is released, what was sent is sent again under its id, what is complete is not sent again."""
    async with running() as here, running(here.broker) as there:
        client = await here.subscriber("a", ("t", 2), clean=False)
        sender = await there.client("p")
        sender.send(*[publish("t", b"%d" % number, qos=2, packet_id=number) for number in (1, 2, 3)])
        await settle()
        assert len(client.messages()) == 3
        client.send(packets.Pubrec(1), packets.Pubrec(2))
        await settle()
        client.send(packets.Pubcomp(1))
        here.services.exact._ripe()
        await settle()
        if orderly:
            client.lose()
            await settle()
        else:
            here.broker.sessions["a"].owner = None
        again = await there.client("a", clean=False)
        await settle()
        assert again.received() == [
            packets.Connack(True, 0),
            packets.Pubrel(2),
            packets.Publish(b"t", b"3", 2, False, True, 3),
        ]
        sender.send(publish("t", b"4", qos=2, packet_id=4))
        await settle()
        assert again.messages() == [("t", b"4", 2, False, False)]


async def test_steps_that_a_lost_broker_did_not_answer_are_sent_again() -> None:
    async with running() as rig:
        client = await subscribed(rig)
        client.messages()
        client.send(packets.Pubrec(1))
        await rig.broker.connections[0].close()
        while not rig.link.up:
            await settle(1)
        await settle()
        assert client.received() == [packets.Pubrel(1)]
        assert [phase for _queue, _offset, phase in rig.broker.sessions["a"].exact.values()] == [PHASE_PUBREL]


async def test_steps_wait_until_the_session_has_been_taken_again() -> None:
    """The broker has restarted, and leaves out what names an epoch of before."""
    async with running() as rig:
        client = await subscribed(rig)
        client.messages()
        session, rig.broker.parked = rig.broker.sessions["a"], frozenset({"a"})
        await rig.broker.connections[0].close()
        session.epoch += 1_000
        while not rig.link.up:
            await settle(1)
        client.send(packets.Pubrec(1))
        await settle()
        assert client.received() == []
        rig.broker.release()
        await settle()
        assert client.received() == [packets.Pubrel(1)]
        assert [phase for _queue, _offset, phase in session.exact.values()] == [PHASE_PUBREL]


async def test_a_step_that_was_left_out_is_not_shown_to_the_client() -> None:
    """Another connection has the session, for all that the broker knows."""
    async with running() as rig:
        client = await subscribed(rig)
        client.messages()
        session, exact = rig.broker.sessions["a"], rig.services.exact
        session.epoch += 1
        client.send(packets.Pubrec(1))
        await settle()
        assert client.received() == []
        assert [phase for _queue, _offset, phase in session.exact.values()] == [PHASE_PUBLISH]
        session.epoch -= 1
        exact._ripe()
        await settle()
        assert client.received() == [packets.Pubrel(1)]


async def test_an_answer_that_cannot_be_read_notes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as rig:
        client = await subscribed(rig)
        client.messages()
        session = rig.broker.sessions["a"]
        session.epoch += 1
        with monkeypatch.context() as broken:
            broken.setattr(module, "decode", raise_violation)
            client.send(packets.Pubrec(1))
            await settle()
        session.epoch -= 1
        assert client.received() == []
        rig.services.exact._ripe()
        await settle()
        assert client.received() == [packets.Pubrel(1)]


def raise_violation(_type: object, _body: bytes) -> None:
    raise RemoteViolation("unreadable")


async def test_a_message_that_no_longer_exists_frees_its_id() -> None:
    async with running() as rig:
        client = await subscribed(rig)
        ((queue_id, _offset, _phase),) = rig.broker.sessions["a"].exact.values()
        client.lose()
        await settle()
        rig.broker.trim(queue_id, 1)
        again = await rig.client("a", clean=False)
        assert again.received() == [packets.Connack(True, 0)]
        rig.services.exact._ripe()
        await settle()
        assert rig.broker.sessions["a"].exact == {}


async def test_steps_of_one_turn_share_a_request_up_to_its_limit(monkeypatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_PER_FLOW_MAX", 2)
    async with running() as rig:
        clients = [await rig.subscriber(name, ("t", 2), clean=False) for name in "abc"]
        sender = await rig.client("p")
        sender.send(publish("t", b"once", qos=2, packet_id=5))
        await settle()
        assert [client.messages() for client in clients] == [[("t", b"once", 2, False, False)]] * 3
        assert rig.count("flow_requests_total") == 2
        rig.services.exact.stop()


async def test_after_a_crash_messages_of_qos_1_between_completed_ones_come_again() -> None:
    """Nothing shows that the client received them; what went out with QoS 2 is known."""
    async with running() as here, running(here.broker) as there:
        client = await here.subscriber("a", ("t", 2), clean=False)
        sender = await there.client("p")
        sender.send(*[publish("t", b"%d" % number, qos=2 - number % 2, packet_id=number) for number in (1, 2, 3)])
        await settle()
        ids = {one.payload: one.packet_id for one in client.received() if isinstance(one, packets.Publish)}
        assert set(ids) == {b"1", b"2", b"3"}
        client.send(packets.Pubrec(ids[b"2"]))
        await settle()
        client.send(packets.Pubcomp(ids[b"2"]))
        here.services.exact._ripe()
        await settle()
        here.broker.sessions["a"].owner = None
        again = await there.client("a", clean=False)
        await settle()
        assert [(topic, payload, qos) for topic, payload, qos, _retain, _dup in again.messages()] == [
            ("t", b"1", 1),
            ("t", b"3", 1),
        ]


async def test_overlapping_subscriptions_skip_completed_messages_too() -> None:
    async with running() as here, running(here.broker) as there:
        client = await here.subscriber("a", ("t/+", 2), ("t/x", 2), clean=False)
        sender = await there.client("p")
        sender.send(publish("t/x", b"1", qos=2, packet_id=1), publish("t/x", b"2", qos=2, packet_id=2))
        await settle()
        ids = {one.payload: one.packet_id for one in client.received() if isinstance(one, packets.Publish)}
        client.send(packets.Pubrec(ids[b"2"]))
        await settle()
        client.send(packets.Pubcomp(ids[b"2"]))
        here.services.exact._ripe()
        await settle()
        here.broker.sessions["a"].owner = None
        again = await there.client("a", clean=False)
        await settle()
        assert again.messages() == [("t/x", b"1", 2, False, True)]
        again.send(packets.Pubrec(ids[b"1"]))
        await settle()
        again.send(packets.Pubcomp(ids[b"1"]))
        await settle()
        assert [source.lowest() for source in again.handler._delivery.sources] == [2, 2]


async def test_a_message_of_a_group_is_stored_under_its_own_place_and_resent_from_there() -> None:
    """With the options of the subscription it came by; one that was not sent at the end is left to the group."""
    async with running() as rig:
        client = await rig.subscriber("a", ("$share/g/t", 2), clean=False)
        sender = await rig.client("p")
        sender.send(publish("t", b"once", qos=2, packet_id=5))
        await settle()
        rig.broker.give(0, message(2, b"t"))
        await settle()
        assert client.messages() == [("t", b"pay", 2, False, False)]
        session = rig.broker.sessions["a"]
        ((place, offset, _phase),) = session.exact.values()
        assert (place, offset) == (client.handler._delivery.memberships.sources[0].queue_id | SHARED_BIT, 0)
        rig.broker.refuse[RequestCode.SESSION_FLOW] = [Refused(14, "disk full")]
        rig.broker.give(1, message(2, b"t"))
        await settle()
        client.close("gone")
        await settle()
        assert list(session.exact.values()) == [(place, 0, 0)]
        again = await rig.client("a", clean=False)
        await settle()
        assert again.messages() == [("t", b"once", 2, False, True)]
