from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from mqtt_proxy import shared
from mqtt_proxy.grants import grant_of
from mqtt_proxy.mqtt.session.in_flight import Outgoing, Qos2Steps
from mqtt_proxy.shared import WINDOW_MAX
from remoting.protocol.bodies.session_body import SharedSettled
from remoting.protocol.records.record import FLAG_RETAIN, RecordView
from tests.unit.mqtt_proxy.rig import settle
from tests.unit.mqtt_proxy.shared_world import FakeOutbound, World, message, send_all


async def test_what_cannot_be_sent_for_long_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full socket: what waits goes out when there is room; if that lasts, other members get it."""
    monkeypatch.setattr(shared, "STUCK_S", 0.0)
    world = World()
    source, session = world.member(3)
    await settle()
    session.set_writable(False)
    world.link.give((source.handle, 1))
    session.set_writable(True)
    assert send_all(source) == [1]
    await settle()
    assert world.link.said() == [], "it was sent in time"
    session.set_writable(False)
    world.link.give((source.handle, 2))
    assert world.wakes == 0
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 0, [], [2])]
    session.set_writable(True)
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 1, [], [])]


async def test_a_socket_that_makes_progress_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow is not stuck: the order of what is in flight matters more than speed."""
    checks: list[Callable[[], None]] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda _seconds, check: checks.append(check))
    world = World()
    source, session = world.member(3)
    await settle()
    world.link.give((source.handle, 1), (source.handle, 2))
    session.set_writable(False)
    source.send(FakeOutbound(source.session.outgoing), 1, RecordView(message(1)), 1)
    checks.pop()()
    await settle()
    assert world.link.said() == []
    checks.pop()()
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 0, [], [2])]


async def test_after_a_loss_a_member_joins_again_with_what_it_has() -> None:
    """What was not sent goes to others; what is unacknowledged, or acknowledged and not reported, is claimed."""
    world = World()
    source, session = world.member(5)
    await settle()
    old = source.handle
    world.link.give((old, 1), (old, 2))
    send_all(source)
    world.link.give((old, 3))
    world.link.lose()
    source.acknowledge(1)
    await settle()
    assert world.link.said() == []
    world.link.up = True
    await settle()
    session.rejoin(9)
    await settle()
    (member,) = world.link.takes[-1].members
    assert member.handle != old
    assert (member.epoch, sorted(member.held), member.credit) == (9, [1, 2], 3)
    assert world.link.said() == [SharedSettled(member.handle, 0, [1], [])]
    world.link.give((old, 4))
    assert world.metrics.subscriptions.shared_late.value == 1


async def test_leaving_gives_back_what_waits_and_keeps_what_is_in_flight() -> None:
    """[MQTT-3.10.4-3] then the member is forgotten."""
    world = World()
    source, _session = world.member(5)
    await settle()
    world.link.give((source.handle, 1), (source.handle, 2))
    source.send(FakeOutbound(source.session.outgoing), 1, RecordView(message(1)), 1)
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
    """The broker learns of it by the session's close."""
    world = World()
    source, _session = world.member(5)
    await settle()
    world.hub.mark(source)
    world.hub.forget(source)
    await settle()
    assert len(world.hub) == 0
    assert world.link.said() == []


async def test_a_member_that_may_not_join_is_counted() -> None:
    """Its session was taken over meanwhile, or the broker refused: its connection is notified separately."""
    world = World()
    world.link.joins = False
    world.member(5)
    await settle()
    assert world.metrics.subscriptions.refused.child("shared_not_joined").value == 1
    world.link.error = RuntimeError("refused")
    world.member(5)
    await settle()
    assert world.metrics.subscriptions.refused.child("shared_not_joined").value == 2


async def test_a_member_requests_what_its_window_has_free() -> None:
    """Up to a bound; with QoS 0 there is no window, with a full one nothing is requested."""
    world = World()
    for free, qos in ((10, 1), (500, 1), (0, 0), (0, 1)):
        world.member(free, qos)
    await settle()
    (take,) = world.link.takes
    assert [member.credit for member in take.members] == [10, WINDOW_MAX, WINDOW_MAX, 0]
    assert len({member.handle for member in take.members}) == 4
    assert take.members[0].filter == "$share/g/a"
    assert len(world.hub) == 4


async def test_members_of_one_session_share_its_window() -> None:
    """So that a message for one member is not given back because of the other."""
    world = World()
    _source, session = world.member(10)
    for group in ("h", "i"):
        session.add(f"$share/{group}/a", 7, grant_of(1), 1)
    await settle()
    assert [member.credit for member in world.link.takes[0].members] == [4, 4, 4]


async def test_an_acknowledgement_settles_and_requests_more_in_one_frame() -> None:
    """One SHARED_SETTLE per turn for all members."""
    world = World()
    one, _session = world.member(2)
    two, _session = world.member(2)
    window, other = one.session.outgoing, two.session.outgoing
    await settle()
    world.link.give((one.handle, 4), (two.handle, 5), (one.handle, 6))
    assert world.wakes == 3
    assert send_all(one) == [4, 6]
    assert send_all(two) == [5]
    await settle()
    assert world.link.frames == 0, "nothing to send: the windows are full or requested"
    window.in_flight_max += 1
    one.acknowledge(4)
    one.acknowledge(4)  # again: sends nothing new
    other.in_flight_max += 1
    two.acknowledge(5)
    await settle()
    assert world.link.frames == 1
    assert world.link.said() == [SharedSettled(one.handle, 1, [4], []), SharedSettled(two.handle, 1, [5], [])]


async def test_a_message_of_qos_0_is_settled_when_it_is_sent() -> None:
    """It gets no acknowledgement."""
    world = World()
    source, _session = world.member(2)
    await settle()
    world.link.give((source.handle, 1))
    send_all(source, qos=0)
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 1, [1], [])]


async def test_memberships_of_a_session_take_turns() -> None:
    """Messages go out with the lower QoS as far as window and budget allow; what is not an MQTT message is settled."""
    world = World()
    window = Outgoing(4)
    both = world.session(window)
    one = both.add("$share/g/a", 7, grant_of(1), 1)
    two = both.add("$share/h/a", 7, grant_of(0), 1)
    await settle()
    assert one.session.sharers == 2
    assert [member.credit for member in world.link.takes[0].members] == [2, WINDOW_MAX]
    one.waiting += [(1, message(1)), (2, message(1, topic=b"")), (3, message(2)), (4, message(0))]
    two.waiting += [(1, message(1))]
    outbound = FakeOutbound(window)
    assert both.send(outbound, 3) == 3
    assert sorted(outbound.sent) == [(b"a", 0, ()), (b"a", 1, ()), (b"a", 1, ())]
    assert outbound.budget_bytes == 91
    outbound.budget_bytes = 0
    assert both.send(outbound, 9) == 0
    outbound.budget_bytes = 100
    assert both.send(outbound, 9) == 1
    assert list(one.unacked) == [1, 3]
    window.in_flight_max = 0
    one.waiting.append((5, message(1)))
    assert both.send(outbound, 9) == 0
    both.set_writable(False)
    assert not one.session.writable
    both.set_writable(True)
    both.room_again()
    await settle()
    world.link.said()
    both.remove(one)
    assert world.link.said() == [SharedSettled(one.handle, 0, [], [5])]
    assert two.session.sharers == 1
    both.rejoin(8)
    await settle()
    assert world.link.takes[-1].members[0].epoch == 8
    both.release()
    assert len(world.hub) == 1, "the one that left still has messages in flight"


async def test_a_message_that_cannot_be_delivered_any_more_is_settled() -> None:
    """Expired, or too large for the client; options and identifier of the subscription go with what is sent."""
    world = World()
    source, _session = world.member(4)
    source.grant = grant_of(1, 2, 9)
    await settle()
    outbound = FakeOutbound(source.session.outgoing)
    outbound.refuses = True
    source.waiting += [(1, message(1 | FLAG_RETAIN)), (2, message(1 | FLAG_RETAIN))]
    assert source.send(outbound, 1, RecordView(source.waiting[0][1]), 1) == 0
    outbound.refuses = False
    assert source.send(outbound, 2, RecordView(source.waiting[0][1]), 1) == 1
    assert outbound.sent == [(b"a", 1, (9,))]
    assert outbound.retained == [True]
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 0, [1], [])]


async def test_free_window_is_reported_once_it_is_worth_a_frame() -> None:
    """A window shared with other subscriptions is freed one message at a time."""
    world = World()
    source, _session = world.member(0)
    await settle()
    source.room_again()
    source.session.outgoing.in_flight_max = 8
    source.credit = 7
    source.room_again()
    await settle()
    assert world.link.frames == 0
    source.credit = 6
    source.room_again()
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 2, [], [])]


async def test_qos_2_of_a_session_without_expiry_is_bound_to_it() -> None:
    """Reported when it is sent, and again after a loss of the broker until the client has it."""
    world = World()
    source, session = world.member(4, qos=2)
    window = source.session.outgoing
    await settle()
    source.waiting += [(1, message(2)), (2, message(2)), (3, message(1))]
    outbound = FakeOutbound(window)
    for offset, qos in ((1, 2), (2, 2), (3, 1)):
        source.send(outbound, offset, RecordView(source.waiting[0][1]), qos)
    await settle()
    assert world.link.said()[0].sent == [1, 2]
    source.acknowledge(1)
    session.rejoin(2)
    await settle()
    (said,) = world.link.said()
    assert (said.done, said.sent) == ([1], [2])
    window.steps = Qos2Steps()  # a kept session stores it instead
    source.waiting.append((4, message(2)))
    source.send(outbound, 4, RecordView(source.waiting[0][1]), 2)
    assert source.report.sent == []
    assert session.at(7) is source
    assert session.at(8) is None
