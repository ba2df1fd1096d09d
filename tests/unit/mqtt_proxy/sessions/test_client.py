"""What one client sees of the proxy, packet by packet."""

from __future__ import annotations

import asyncio

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.properties import MAXIMUM_PACKET_SIZE
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from tests.unit.mqtt_proxy.rig import Wire, publish, running, settle


async def test_connect_is_answered_when_the_session_is_open() -> None:
    """CONNACK 0 without a session for a new client."""
    async with running() as rig:
        client = await rig.client("a")
        assert client.received() == [packets.Connack(False, 0)]
        assert rig.broker.sessions["a"].owner is not None


async def test_wrong_credentials_get_code_4_and_no_session() -> None:
    """Bad user name or password."""
    async with running() as rig:
        client = await rig.client("a", username="denied")
        assert client.received() == [packets.Connack(False, 4)]
        assert "a" not in rig.broker.sessions
        assert rig.count("connects_refused_total{authentication}") == 1


async def test_a_will_that_may_not_be_published_refuses_the_connection() -> None:
    """Not authorized."""
    async with running() as rig:
        rig.access.forbidden.add(b"secret")
        client = await rig.client("a", will=packets.Will(b"secret", b"", 0, False))
        assert client.received() == [packets.Connack(False, 5)]


async def test_no_broker_means_server_unavailable() -> None:
    """CONNACK 3 while the broker is away."""
    async with running() as rig:
        await rig.link.stop()
        client = await rig.client("a")
        assert client.received() == [packets.Connack(False, 3)]
        assert len(rig.services.owners) == 0


async def test_publish_is_acknowledged_only_when_confirmed() -> None:
    """PUBACK in order of receipt, after the append."""
    async with running() as rig:
        client = await rig.client("a")
        client.received()
        rig.broker.holding = True
        client.send(publish("t", b"1", packet_id=7), publish("t", b"2", packet_id=5), publish("t", b"3", qos=0))
        await settle()
        assert client.received() == []
        rig.broker.release()
        await settle()
        assert client.received() == [packets.Puback(7), packets.Puback(5)]


async def test_a_forbidden_topic_ends_the_connection_without_an_acknowledgement() -> None:
    """Nothing of the batch goes to the broker."""
    async with running() as rig:
        rig.access.forbidden.add(b"secret")
        client = await rig.client("a")
        client.received()
        client.send(publish("secret", b"1"))
        await settle()
        assert client.closed is not None
        assert client.closed.startswith("not_authorized")
        assert client.received() == []
        assert rig.count("publishes_refused_total{not_authorized}") == 1


async def test_two_connections_of_one_id_in_one_proxy() -> None:
    """The old one ends and its will is published; the new one resumes what the old one had in flight."""
    async with running() as rig:
        watcher = await rig.subscriber("watcher", ("wills/#", 1))
        old = await rig.client("a", clean=False, will=packets.Will(b"wills/a", b"gone", 1, False))
        old.send(packets.Subscribe(1, [("t/#", 1)]))
        await settle()
        sender = await rig.client("sender")
        sender.send(publish("t/1", b"x"))
        await settle()
        assert old.messages() == [("t/1", b"x", 1, False, False)]
        new = await rig.client("a", clean=False)
        assert old.closed is not None
        assert old.closed.startswith("taken_over")
        assert new.received() == [packets.Connack(True, 0), packets.Publish(b"t/1", b"x", 1, False, True, 1)]
        assert watcher.messages() == [("wills/a", b"gone", 1, False, False)]


async def test_take_over_by_another_proxy_fences() -> None:
    """The broker reports it; the old connection ends and says nothing more about the session."""
    async with running() as first, running(first.broker) as second:
        old = await first.client("a", clean=False)
        new = await second.client("a", clean=False)
        await settle()
        assert old.closed is not None
        assert "another proxy" in old.closed
        assert new.closed is None
        assert new.received() == [packets.Connack(True, 0)]
        assert first.count("takeovers_total") == 1


async def test_disconnect_drops_the_will() -> None:
    """Only a close without DISCONNECT publishes it."""
    async with running() as rig:
        client = await rig.client("a", will=packets.Will(b"w", b"gone", 0, False))
        client.send(packets.Disconnect())
        client.close("disconnect")
        await settle()
        assert rig.count("wills_total") == 0
        assert rig.broker.sessions == {}


async def arriving(client: Wire) -> list[tuple[str, bytes, int, bool, bool]]:
    """The next publishes; at least one, or the test ends in a timeout."""
    async with asyncio.timeout(30):
        while not (got := client.messages()):
            await asyncio.sleep(0.001)
    return got


async def test_a_lost_broker_ends_qos_2_publishers_and_keeps_the_others() -> None:
    """Publishers of QoS 2 are closed, those of QoS 1 and idle subscribers stay: nothing is missed."""
    async with running() as rig:
        subscriber = await rig.subscriber("s", ("t/#", 1), clean=False)
        sender, stays = await rig.client("p"), await rig.client("q")
        rig.broker.holding = True
        sender.send(publish("t/1", b"lost", 2))
        stays.send(publish("t/1", b"sent by us"))
        await settle()
        rig.broker.held.clear()  # before the loss: the proxy may reconnect and repeat at once
        rig.broker.holding = False
        await rig.broker.connections[0].close()
        await settle()
        assert sender.closed is not None
        assert sender.closed.startswith("broker_lost")
        got = await arriving(subscriber)  # repeated by the proxy when the broker is back, however late
        again = await rig.client("p")
        again.send(publish("t/1", b"sent again"))
        got += await arriving(subscriber)
        assert subscriber.closed is None
        assert stays.closed is None
        assert got == [
            ("t/1", b"sent by us", 1, False, False),
            ("t/1", b"sent again", 1, False, False),
        ]
        assert rig.broker.sessions["s"].epoch > 1


async def test_subscribe_and_unsubscribe() -> None:
    """SUBACK with the granted QoS, 0x80 for a forbidden filter; UNSUBACK, and no deliveries after it."""
    async with running() as rig:
        rig.access.forbidden.add(b"secret/#")
        client = await rig.client("a")
        client.received()
        client.send(packets.Subscribe(9, [("t/#", 1), ("secret/#", 1), ("u", 0)]))
        await settle()
        assert client.received() == [packets.Suback(9, [1, 0x80, 0])]
        client.send(packets.Unsubscribe(10, ["t/#"]))
        await settle()
        assert client.received() == [packets.Unsuback(10)]
        client.send(publish("t/1", b"x"), publish("u", b"y", packet_id=2))
        await settle()
        assert client.messages() == [("u", b"y", 0, False, False)]


async def test_an_end_while_connecting_leaves_no_owner() -> None:
    """The socket breaks before the CONNACK."""
    async with running() as rig:
        client = Wire(rig)
        client.send(packets.Connect("a", True, 0))
        client.lose()
        await settle()
        assert len(rig.services.owners) == 0
        assert client.received() == []
    async with running() as rig:
        client = Wire(rig)
        client.send(packets.Connect("a", False, 0))
        await settle(4)
        client.lose()
        await settle()
        assert rig.broker.sessions["a"].owner is None


async def test_another_users_session_is_refused() -> None:
    """The broker's refusal becomes CONNACK 5."""
    async with running() as rig:
        rig.broker.refuse[RequestCode.SESSION_OPEN] = [Refused(16, "belongs to another user")]
        client = await rig.client("a", username="eve")
        assert client.received() == [packets.Connack(False, 5)]


async def test_a_socket_that_breaks_while_the_session_opens_is_not_answered() -> None:
    """The session is closed before its end is reported; the broker gets the session back."""
    async with running() as rig:
        client = Wire(rig)
        client.send(packets.Connect("a", False, 0))
        client.session.close("peer_closed")
        await settle()
        assert client.received() == []
        assert rig.broker.sessions["a"].owner is None
        client.handler.on_closed("peer_closed", False)
        assert len(rig.services.owners) == 0


async def test_a_closed_session_gets_no_deliveries() -> None:
    """Messages that come in the turn of the end stay in the log."""
    async with running() as rig:
        client = await rig.subscriber("s", ("t", 1))
        sender = await rig.client("p")
        sender.send(publish("t", b"x"))
        client.session.close("peer_closed")
        await settle()
        assert client.messages() == []
        assert client.closed is None


async def test_another_user_cannot_end_a_connection_by_its_client_id() -> None:
    """Neither with a user name of its own nor without one; the same user takes it over."""
    async with running() as rig:
        ann = await rig.client("shared", username="ann")
        ann.received()
        for stranger in (await rig.client("shared", username="bob"), await rig.client("shared")):
            assert stranger.received() == [packets.Connack(False, 5)]
        assert ann.closed is None
        assert rig.count("connects_refused_total{foreign_session}") == 2
        assert (await rig.client("shared", username="ann")).received() == [packets.Connack(False, 0)]
        assert ann.closed is not None


async def test_a_client_that_accepts_no_connack_gives_its_session_back() -> None:
    """The broker accepted it, but its packet limit is too small for the answer: it ends like any other."""
    async with running() as rig:
        wire = await rig.client("tiny", level=5, properties={MAXIMUM_PACKET_SIZE: 6})
        assert [packet.code for packet in wire.received()] == [0x95]
        wire.close("connect_refused")
        await settle()
        assert not len(rig.services.owners)
