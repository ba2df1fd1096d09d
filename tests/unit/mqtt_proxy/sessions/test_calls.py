"""Requests about sessions leave in the order in which they were made, and every answer or failure comes later."""

from __future__ import annotations

import asyncio

import pytest

from mqtt_proxy.link import LinkDownError
from mqtt_proxy.mqtt.codec import packets
from remoting.protocol.bodies.session_body import FilterRequest, SubscribeRequest
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from tests.unit.mqtt_proxy.rig import publish, running, settle

APPEND, OPEN, CLOSE = RequestCode.APPEND_MANY, RequestCode.SESSION_OPEN, RequestCode.SESSION_CLOSE
SUBSCRIBE, UNSUBSCRIBE = RequestCode.SUBSCRIBE, RequestCode.UNSUBSCRIBE


async def test_a_client_has_its_session_in_the_turn_of_its_connect() -> None:
    """No task and one turn of the loop where everything is at hand."""
    async with running() as rig:
        wire = await rig.client("other")
        wire = type(wire)(rig)
        wire.send(packets.Connect("a", True, 0))
        assert not rig.services.tasks
        await asyncio.sleep(0)
        assert wire.received() == [packets.Connack(False, 0)]


async def test_a_subscribe_leaves_behind_what_was_published_before_it() -> None:
    async with running() as rig:
        clients = [await rig.client(name) for name in "ab"]
        rig.broker.codes.clear()
        clients[0].send(packets.Subscribe(1, [("t", 1)]))
        clients[1].send(publish("t", b"x"), packets.Subscribe(1, [("t", 1)]), publish("t", b"y", packet_id=2))
        await settle()
        wanted = [code for code in rig.broker.codes if code in (APPEND, SUBSCRIBE)]
        assert wanted == [SUBSCRIBE, APPEND, SUBSCRIBE, APPEND]
        kinds = [packets.Puback, packets.Suback, packets.Puback, packets.Publish]
        received = clients[1].received()[1:]
        assert [type(one) for one in received] == kinds
        assert received[-1].payload == b"y"


async def test_who_connects_again_in_the_same_turn_finds_what_was_asked_for() -> None:
    """The SUBSCRIBE leaves before the SESSION_CLOSE and the SESSION_OPEN behind it."""
    async with running() as rig:
        first = await rig.client("a", clean=False)
        rig.broker.codes.clear()
        first.send(packets.Subscribe(1, [("t", 1)]))
        again = type(first)(rig)
        again.send(packets.Connect("a", False, 0))
        await settle()
        assert rig.broker.codes[:3] == [SUBSCRIBE, CLOSE, OPEN]
        assert again.received() == [packets.Connack(True, 0)]


async def test_who_gives_a_filter_up_and_takes_it_again_has_it() -> None:
    """What comes behind an UNSUBSCRIBE does not overtake it."""
    async with running() as rig:
        wire = await rig.subscriber("a", ("t", 1))
        rig.broker.codes.clear()
        wire.send(packets.Unsubscribe(2, ["t"]), packets.Subscribe(3, [("t", 1)]), publish("t", b"x"))
        await settle()
        wanted = [code for code in rig.broker.codes if code in (APPEND, SUBSCRIBE, UNSUBSCRIBE)]
        assert wanted == [UNSUBSCRIBE, SUBSCRIBE, APPEND]
        assert list(rig.broker.sessions["a"].subscriptions) == ["t"]


async def test_a_stop_waits_for_what_is_not_confirmed() -> None:
    async with running() as rig:
        wire = await rig.client("a", clean=False)
        wire.lose()
        assert len(rig.services.tasks) == 1
        await settle()
        assert not rig.services.tasks


async def test_refusals_end_the_connection() -> None:
    async with running() as rig:
        wire = await rig.client("a")
        rig.broker.sessions["a"].owner = None
        rig.broker.sessions["a"].epoch += 1
        wire.send(packets.Subscribe(1, [("t", 1)]))
        await settle()
        assert wire.closed is not None
        assert wire.closed.startswith("broker_refused")


@pytest.mark.parametrize("up", [True, False])
async def test_what_is_wrong_with_an_answer_is_an_error(up: bool) -> None:
    """A reply nobody can read, and a broker that is away; never inside the request."""
    async with running() as rig:
        heard: list[Exception | None] = []
        rig.broker._answers = rig.broker._answers | {SUBSCRIBE: lambda *_: b"?"}
        if not up:
            await rig.link.stop()
        request = SubscribeRequest("a", 1, False, [FilterRequest("t", 0)])
        rig.services.calls.subscribe(request, lambda _reply, error: heard.append(error))
        assert not heard
        await settle()
        (error,) = heard
        assert isinstance(error, LightMQError)
        assert isinstance(error, LinkDownError) is not up
