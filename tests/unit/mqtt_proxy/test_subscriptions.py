"""SUBSCRIBE is effective before its SUBACK, limits refuse single filters, a repeated filter keeps its position."""

from __future__ import annotations

import asyncio

import pytest

from mqtt_proxy.mqtt.codec import packets
from remoting.protocol.bodies.session_body import HistoryStart
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from tests.unit.mqtt_proxy.rig import publish, running, settle
from tests.unit.mqtt_proxy.shared_world import message


async def test_filters_beyond_the_limit_are_refused_one_by_one() -> None:
    """0x80 for them only; subscribing again to a known filter does not count."""
    async with running() as rig:
        rig.broker.subscriptions_max = 2
        client = await rig.subscriber("s", ("a", 1), ("b", 1))
        client.send(packets.Subscribe(2, [("c", 1), ("a", 0)]))
        await settle()
        assert client.received() == [packets.Suback(2, [0x80, 0])]
        assert rig.count("subscriptions_refused_total{too_many}") == 1
        client.send(packets.Subscribe(3, [("d", 1)]))
        await settle()
        assert client.received() == [packets.Suback(3, [0x80])]


async def test_a_repeated_filter_keeps_its_position_with_its_new_qos() -> None:
    """No message twice, none missing."""
    async with running() as rig:
        client = await rig.subscriber("s", ("t", 1))
        client.handler.on_writable(False)
        sender = await rig.client("p")
        sender.send(publish("t", b"0"), publish("t", b"1", packet_id=2))
        await settle()
        client.send(packets.Subscribe(2, [("t", 0)]))
        await settle()
        client.handler.on_writable(True)
        await settle()
        assert client.messages() == [("t", b"0", 0, False, False), ("t", b"1", 0, False, False)]


async def test_messages_between_subscribe_and_suback_are_not_missed() -> None:
    """A publish that follows the SUBSCRIBE in the same read."""
    async with running() as rig:
        client = await rig.client("s")
        client.received()
        client.send(packets.Subscribe(1, [("t", 1)]), publish("t", b"own"))
        await settle()
        assert [type(one) for one in client.received()].count(packets.Publish) == 1


async def test_a_broker_that_refuses_ends_the_connection() -> None:
    """No SUBACK for a subscription that does not exist."""
    async with running() as rig:
        client = await rig.client("s")
        client.received()
        rig.broker.refuse[RequestCode.SUBSCRIBE] = [Refused(14, "disk full")]
        client.send(packets.Subscribe(1, [("t", 1)]))
        await settle()
        assert client.closed is not None
        assert client.closed.startswith("broker_refused")
        assert client.received() == []


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("topic_filter", ["t", "a/+", "$share/g/a", "$SYS/broker/uptime"])
async def test_a_client_that_leaves_before_the_answer_follows_nothing(turns: int, topic_filter: str) -> None:
    """Whenever the connection ends, the late answer is ignored and nothing is kept for it."""
    async with running() as rig:
        client = await rig.client("s")
        client.send(packets.Subscribe(1, [(topic_filter, 1)]))
        for _ in range(turns):
            await asyncio.sleep(0)
        client.send(packets.Disconnect())
        client.lose()
        await settle()
        assert rig.broker.codes.count(RequestCode.SUBSCRIBE) == 1
        assert rig.tools.notifier.feeds == {}
        assert rig.metrics.subscriptions.open.value == 0


async def test_clean_sessions_subscribe_again_after_a_loss() -> None:
    """The broker forgot them; their cursors continue where they were."""
    async with running() as rig:
        client = await rig.subscriber("s", ("t", 1))
        await rig.broker.connections[0].close()
        while not rig.link.up:
            await settle(1)
        await settle()
        assert "t" in rig.broker.sessions["s"].subscriptions
        sender = await rig.client("p")
        sender.send(publish("t", b"x"))
        await settle()
        assert client.messages() == [("t", b"x", 1, False, False)]


async def test_a_client_whose_filter_is_not_granted_again_is_told_by_its_connection() -> None:
    """It would miss messages in silence otherwise."""
    async with running() as rig:
        client = await rig.subscriber("s", ("t", 1), ("u", 1))
        rig.broker.subscriptions_max = 1
        await rig.broker.connections[0].close()
        while not rig.link.up:
            await settle(1)
        await settle()
        assert client.closed is not None
        assert client.closed.startswith("broker_refused")
        assert rig.count("subscriptions_refused_total{too_many}") == 1


async def test_reason_codes_of_level_5() -> None:
    """One per filter, in both directions."""
    async with running() as rig:
        rig.broker.subscriptions_max = 1
        client = await rig.client("s", level=5)
        client.received()
        rig.access.forbidden.add(b"secret")
        client.send(packets.Subscribe(2, [("secret", 0), ("a", 2)]))
        await settle()
        client.send(packets.Subscribe(3, [("b", 1)]), packets.Unsubscribe(4, ["b", "a"]))
        await settle()
        assert client.received() == [
            packets.Suback(2, [0x87, 2]),
            packets.Suback(3, [0x97]),
            packets.Unsuback(4, [0x11, 0]),
        ]


async def test_a_share_without_a_name_or_a_filter_is_an_invalid_filter() -> None:
    """Whatever the client may read: [MQTT-4.8.2-1], [MQTT-4.8.2-2]; the valid filter beside it is granted."""
    async with running() as rig:
        rig.access.forbidden |= {b"$share//a", b"$share/g"}
        client = await rig.client("s", level=5)
        client.received()
        client.send(packets.Subscribe(2, [("$share//a", 0), ("$share/g", 1), ("$share/+/a", 1), ("$share/g/a", 1)]))
        await settle()
        assert client.received() == [packets.Suback(2, [0x8F, 0x8F, 0x8F, 1])]


async def test_filters_that_match_nothing_are_refused() -> None:
    """A client that is granted one would wait for ever; others below `$` may be served."""
    async with running() as rig:
        client = await rig.client("s", level=5)
        client.received()
        wanted = ["$queue/a", "$exclusive/a", "$delayed/1/a", "$share/g/$SYS/#", "$SYS/#", "$other/a"]
        client.send(packets.Subscribe(2, [(one, 1) for one in wanted]))
        await settle()
        (suback, *_) = client.received()
        assert suback == packets.Suback(2, [0x8F, 0x8F, 0x8F, 0x8F, 1, 1])
        assert rig.count("subscriptions_refused_total{invalid}") == 4


async def test_a_shared_subscription_takes_from_its_group() -> None:
    """Judged by its inner filter; messages are delivered, settled when acknowledged, given back when the client
    leaves."""
    async with running() as rig:
        rig.access.forbidden.add(b"$share/g/secret")
        client = await rig.client("s", clean=False)
        client.send(packets.Subscribe(2, [("$share/g/a", 1), ("$share/g/secret", 1)]))
        await settle()
        assert client.received()[-1] == packets.Suback(2, [1, 0x80])
        (peer_member,) = rig.broker.members
        assert (peer_member[1].client_id, peer_member[1].filter) == ("s", "$share/g/a")
        rig.broker.give(4, message(1))
        rig.broker.give(5, message(1))
        await settle()
        first, second = [one for one in client.received() if isinstance(one, packets.Publish)]
        client.send(packets.Puback(first.packet_id))
        await settle()
        assert [one.done for one in rig.broker.settled] == [[4]]
        client.send(packets.Subscribe(3, [("$share/g/a", 0)]))
        await settle()
        assert len(rig.broker.members) == 1, "subscribed again: the same member continues"
        client.lose()
        await settle()
        assert rig.broker.sessions["s"].inflight == [], "what it did not acknowledge goes to another member"
        again = await rig.client("s", clean=False)
        await settle()
        assert len(rig.broker.members) == 2
        rig.broker.give(5, message(1))
        await settle()
        assert second.payload == b"pay"
        assert [(m[1], m[2]) for m in again.messages()] == [(b"pay", 0)]
        again.send(packets.Unsubscribe(9, ["$share/g/a"]))
        await settle()
        rig.broker.give(6, message(1))
        await settle()
        assert rig.broker.settled[-1].back == [6]
        assert again.messages() == []


async def test_a_member_joins_again_when_the_broker_is_back() -> None:
    """With what its client has not acknowledged."""
    async with running() as rig:
        client = await rig.client("s")
        client.send(packets.Subscribe(2, [("$share/g/a", 1)]))
        await settle()
        rig.broker.give(4, message(1))
        await settle()
        await rig.broker.connections[0].close()
        await settle()
        while not rig.link.up:
            await settle(1)
        await settle()
        assert [member.held for _, member in rig.broker.members] == [[], [4]]


async def test_history_begins_the_subscription_where_the_broker_says() -> None:
    """Judged as history, sent to the broker with the requested start; what is not understood is refused."""
    async with running() as rig:
        rig.access.forbidden.add(b"$history//secret")
        client = await rig.client("s")
        sender = await rig.client("p")
        for number in range(5):
            sender.send(publish("t", b"%d" % number))
            await settle()
        client.send(
            packets.Subscribe(2, [("$history/last=2/t", 1), ("$history/x/t", 1), ("$history/last=1/secret", 1)])
        )
        await settle()
        suback, *messages = client.received()[1:]
        assert suback == packets.Suback(2, [1, 0x80, 0x80])
        assert [(one.payload, one.retain) for one in messages] == [(b"3", False), (b"4", False)]
        assert [one.history for one in rig.broker.wished] == [HistoryStart(last=2)]
        sender.send(publish("t", b"5"))
        await settle()
        assert rig.services.metrics.subscriptions.refused.child("history").value == 1
        client.send(packets.Unsubscribe(3, ["$history/last=2/t"]))
        await settle()
        assert rig.broker.sessions["s"].subscriptions == {}
