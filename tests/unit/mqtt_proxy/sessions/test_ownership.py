"""The broker's record of which connection owns a session."""

from __future__ import annotations

import pytest

from mqtt_proxy.delivery.delivery import Delivery
from mqtt_proxy.link import LinkDownError
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.session.events import NEVER, ConnectRequested, Disconnected
from mqtt_proxy.sessions.services import Answered
from mqtt_proxy.wills import will_spec
from remoting.access.rules import ANONYMOUS, Identity
from remoting.protocol.bodies.session_body import WILL_DISCARD, WILL_DUE, SessionOpen, SessionOpened
from tests.unit.mqtt_proxy.rig import Rig, Wire, running, settle

WILL = packets.Will(b"w", b"gone", 1, False)


def leave(client: Wire) -> None:
    """DISCONNECT."""
    client.send(packets.Disconnect())
    client.close("disconnect")


async def test_a_clean_session_has_no_expiry_and_another_has_the_longest() -> None:
    """Which the broker knows."""
    async with running() as rig:
        await rig.client("a", clean=True, will=WILL, username="anna")
        await rig.client("b", clean=False)
        first, second = rig.broker.opened
        assert (first.clean, first.expiry_s, first.user) == (True, 0, "anna")
        assert first.will == will_spec(WILL, Identity("anna", anonymous=False, client_id=""))
        assert (second.clean, second.expiry_s, second.user, second.will) == (False, NEVER, None, None)


async def test_the_close_says_whether_the_client_disconnected_and_its_offsets() -> None:
    async with running() as rig:
        lost = await rig.client("a", clean=False, will=WILL)
        lost.send(packets.Subscribe(1, [("t", 1)]))
        await settle()
        left = await rig.client("b", will=WILL)
        publisher = await rig.client("p")
        publisher.send(packets.Publish(b"t", b"x", 1, False, False, 1))
        await settle()
        (source,) = lost.handler._delivery.sources
        queue_id = source.queue_id
        lost.lose()
        left.send(packets.Disconnect())
        left.close("disconnect")
        await settle()
        closed = {one.client_id: one for one in rig.broker.closed}
        assert (closed["a"].will, closed["a"].durable, closed["a"].offsets) == (WILL_DUE, True, [(queue_id, 0)])
        assert [one.packet_id for one in closed["a"].inflight] == [1, 0]
        assert (closed["b"].will, closed["b"].durable, closed["b"].inflight) == (WILL_DISCARD, False, [])


async def test_after_a_loss_of_the_broker_it_names_the_epoch_it_continues() -> None:
    async with running() as rig:
        await rig.client("a", will=WILL)
        epoch = rig.broker.sessions["a"].epoch
        await rig.broker.connections[0].close()
        while not rig.link.up:
            await settle(1)
        await settle()
        assert [one.continues for one in rig.broker.opened] == [0, epoch]
        assert rig.broker.opened[1].will is not None


async def came_back(rig: Rig) -> None:
    """The broker's connection is lost and open again; nothing has been sent on the new one."""
    await rig.broker.connections[-1].close()
    while not rig.link.up:
        await settle(1)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("turns", range(8))
async def test_a_client_lost_while_its_session_is_reopened_has_its_will_published(turns: int, durable: bool) -> None:
    """At whichever turn of the loop it ends, the broker is notified with the epoch that it gave."""
    async with running() as rig:
        client = await rig.client("a", clean=not durable, will=WILL)
        await came_back(rig)
        await settle(turns)
        client.lose()
        await settle()
        assert [one.allowed for one in rig.broker.verdicts] == [True]
        session = rig.broker.sessions.get("a")
        assert session is None or session.owner is None
        assert (session is not None) == durable


@pytest.mark.parametrize("turns", range(8))
async def test_a_session_that_is_asked_for_while_it_is_reopened_is_handed_over(turns: int) -> None:
    """At whichever turn: its new owner waits for the state, which nobody else knows."""
    async with running() as rig:
        client = await rig.client("a", clean=False)
        await came_back(rig)
        await settle(turns)
        client.handler.fence(rig.broker.sessions["a"].epoch + 1, hand_over=True)
        await settle()
        assert rig.broker.sessions["a"].owner is None


@pytest.mark.parametrize("turns", range(8))
async def test_a_client_that_disconnects_while_its_session_is_reopened_leaves_no_will(turns: int) -> None:
    async with running() as rig:
        client = await rig.client("a", will=WILL)
        await came_back(rig)
        await settle(turns)
        leave(client)
        await settle()
        assert (rig.broker.wills, rig.broker.sessions, rig.broker.verdicts) == ({}, {}, [])


async def test_a_client_that_disconnects_while_the_broker_is_away_leaves_no_will() -> None:
    """Also when the broker is lost once more before it was notified."""
    async with running() as rig:
        left, lost = await rig.client("left", will=WILL), await rig.client("lost", will=WILL)
        await rig.broker.connections[-1].close()
        while rig.link.up:
            await settle(1)
        leave(left)
        lost.lose()
        while not rig.link.up:
            await settle(1)
        await came_back(rig)
        await settle()
        assert [client_id for client_id, _epoch in rig.broker.wills] == ["lost"]
        assert list(rig.broker.sessions) == ["lost"]


async def test_a_broker_that_does_not_answer_in_time_is_asked_again() -> None:
    async with running() as rig:
        client = await rig.client("a", will=WILL)
        calls = rig.services.calls
        ask, asked = calls.open, []

        def slow(request: SessionOpen, said: Answered[SessionOpened], timeout_ms: int) -> None:
            asked.append(request.continues)
            if len(asked) < 3:
                said(None, LinkDownError("no answer within 10000 ms"))
            else:
                ask(request, said, timeout_ms)

        calls.open = slow  # type: ignore[method-assign]
        await came_back(rig)
        await settle()
        assert asked == [1, 1, 1]
        client.lose()
        await settle()
        assert [one.allowed for one in rig.broker.verdicts] == [True]


async def test_a_client_that_leaves_before_the_session_is_open_gives_it_back() -> None:
    async with running() as rig:
        wire = Wire(rig)
        wire.send(packets.Connect("a", False, 0, None, None, WILL))
        assert not rig.broker.opened
        wire.lose()
        await settle()
        assert [(one.will, one.durable) for one in rig.broker.closed] == [(WILL_DISCARD, True)]
        assert not rig.broker.verdicts


async def test_mqtt_5_sets_the_session_expiry_and_a_disconnect_may_change_it() -> None:
    async with running() as rig:
        rig.broker.expiry_s_max = 500
        wire = Wire(rig)
        hold = wire.handler._ownership
        connect = ConnectRequested("a", True, 0, None, None, None, 5, False, session_expiry_s=NEVER)
        hold.want(connect)
        answers: list[SessionOpened | None] = []
        hold.take(ANONYMOUS, lambda opened, _error: answers.append(opened), clean=True)
        await settle()
        (opened,) = answers
        assert opened is not None
        assert (hold.durable, opened.expiry_s) == (True, 500)
        hold.epoch, hold.is_open = opened.epoch, True
        hold.leave(Disconnected(0, 20))
        counters = rig.tools.metrics.clients("tcp", "5")
        hold.close(
            wire.session, Delivery(wire.session, rig.tools, wire, wire.handler, counters, wire.flow_out), will_due=True
        )
        await settle()
        assert [(one.durable, one.expiry_s, one.will) for one in rig.broker.closed] == [(True, 20, WILL_DUE)]
