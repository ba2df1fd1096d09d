"""What members say in a turn is one frame; losses, leaving and what cannot be sent for long."""

from __future__ import annotations

import asyncio

import pytest

from mqtt_proxy.shared import hub as shared
from remoting.protocol.bodies.shared_body import SharedSettled
from remoting.protocol.records.record import RecordView
from tests.unit.mqtt_proxy.rig import settle
from tests.unit.mqtt_proxy.shared_world import FakeOutbound, World, message, send_all


async def test_what_cannot_be_sent_for_long_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full socket: what waits goes out when there is room; if that lasts, others get it, and nothing is asked for."""
    monkeypatch.setattr(shared, "STUCK_S", 0.0)
    world = World()
    source, window = world.member(3)
    await settle()
    source.set_writable(False)
    world.link.give((source.handle, 1))
    source.set_writable(True)
    assert send_all(source, window) == [1]
    await settle()
    assert world.link.said() == [], "it got away in time"
    source.set_writable(False)
    world.link.give((source.handle, 2))
    assert world.wakes == 0
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 0, [], [2])]
    source.set_writable(True)
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 1, [], [])]


async def test_a_head_that_moves_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow is not stuck: the order of what is under way matters more than speed."""
    monkeypatch.setattr(shared, "STUCK_S", 0.05)
    world = World()
    source, window = world.member(3)
    await settle()
    world.link.give((source.handle, 1), (source.handle, 2))
    source.set_writable(False)
    source.send(FakeOutbound(window), 1, RecordView(message(1)), 1)
    await asyncio.sleep(0.07)
    assert world.link.said() == []
    await asyncio.sleep(0.07)
    assert world.link.said() == [SharedSettled(source.handle, 0, [], [2])]


async def test_after_a_loss_a_member_joins_again_with_what_it_has() -> None:
    """What was not sent others get; what is unacknowledged, or acknowledged and not said, is claimed."""
    world = World()
    source, window = world.member(5)
    await settle()
    old = source.handle
    world.link.give((old, 1), (old, 2))
    send_all(source, window)
    world.link.give((old, 3))
    world.link.lose()
    source.acknowledge(1)
    await settle()
    assert world.link.said() == []
    world.link.up = True
    await settle()
    source.join("c", 9, world._wake)
    await settle()
    (member,) = world.link.takes[-1].members
    assert member.handle != old
    assert (member.epoch, sorted(member.held), member.credit) == (9, [1, 2], 3)
    assert world.link.said() == [SharedSettled(member.handle, 0, [1], [])]
    world.link.give((old, 4))
    assert world.metrics.subscriptions.shared_late.value == 1


async def test_leaving_gives_back_what_waits_and_stays_for_what_is_under_way() -> None:
    """[MQTT-3.10.4-3] then the member is forgotten."""
    world = World()
    source, window = world.member(5)
    await settle()
    world.link.give((source.handle, 1), (source.handle, 2))
    source.send(FakeOutbound(window), 1, RecordView(message(1)), 1)
    source.leave()
    world.hub.flush()
    assert world.link.said() == [SharedSettled(source.handle, 0, [], [2])]
    world.link.give((source.handle, 3))
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 0, [], [3])]
    assert len(world.hub) == 1
    source.acknowledge(1)
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 0, [1], [])]
    assert len(world.hub) == 0


async def test_a_session_that_ended_is_forgotten() -> None:
    """The broker learns it by the session's close."""
    world = World()
    source, _window = world.member(5)
    await settle()
    world.hub.mark(source)
    world.hub.forget(source)
    await settle()
    assert len(world.hub) == 0
    assert world.link.said() == []


async def test_a_member_that_may_not_join_is_counted() -> None:
    """Its session was taken over meanwhile, or the broker refused: its connection hears that by itself."""
    world = World()
    world.link.joins = False
    world.member(5)
    await settle()
    assert world.metrics.subscriptions.refused.child("shared_not_joined").value == 1
    world.link.error = RuntimeError("refused")
    world.member(5)
    await settle()
    assert world.metrics.subscriptions.refused.child("shared_not_joined").value == 2
