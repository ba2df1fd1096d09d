"""A member asks for what its window has free, says what its client has, and gives back what it cannot send."""

from __future__ import annotations

from mqtt_proxy.mqtt.session.in_flight import Outgoing, Qos2Steps
from mqtt_proxy.shared.hub import Memberships
from mqtt_proxy.shared.member import WINDOW_MAX
from remoting.protocol.bodies.shared_body import SharedSettled
from remoting.protocol.records.record import FLAG_RETAIN, RecordView
from tests.unit.mqtt_proxy.rig import settle
from tests.unit.mqtt_proxy.shared_world import FakeOutbound, World, message, send_all


async def test_a_member_asks_for_what_its_window_has_free() -> None:
    """Up to a bound; with QoS 0 there is no window, with a full one nothing is asked for."""
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
    """So that what one is given does not have to be given back for the other's sake."""
    world = World()
    source, _window = world.member(10)
    source.sharers = 3
    await settle()
    assert world.link.takes[0].members[0].credit == 4


async def test_an_acknowledgement_settles_and_asks_for_more_in_one_frame() -> None:
    """One SHARED_SETTLE per turn for all members."""
    world = World()
    one, window = world.member(2)
    two, other = world.member(2)
    await settle()
    world.link.give((one.handle, 4), (two.handle, 5), (one.handle, 6))
    assert world.wakes == 3
    assert send_all(one, window) == [4, 6]
    assert send_all(two, other) == [5]
    await settle()
    assert world.link.frames == 0, "nothing to say: the windows are full or asked for"
    window.in_flight_max += 1
    one.acknowledge(4)
    one.acknowledge(4)  # again: says nothing new
    other.in_flight_max += 1
    two.acknowledge(5)
    await settle()
    assert world.link.frames == 1
    assert world.link.said() == [SharedSettled(one.handle, 1, [4], []), SharedSettled(two.handle, 1, [5], [])]


async def test_a_message_of_qos_0_is_done_when_it_is_sent() -> None:
    """Nobody will acknowledge it."""
    world = World()
    source, window = world.member(2)
    await settle()
    world.link.give((source.handle, 1))
    send_all(source, window, qos=0)
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 1, [1], [])]


async def test_memberships_of_a_session_take_turns() -> None:
    """Messages go out with the lower QoS as far as window and budget allow; what is no MQTT message is done."""
    world = World()
    window = Outgoing(4)
    both = Memberships(world.hub, window, world._wake)
    one = both.add("$share/g/a", 7, 1, "c", 1)
    two = both.add("$share/h/a", 7, 0, "c", 1)
    await settle()
    assert one.sharers == 2
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
    assert not one.writable
    both.set_writable(True)
    both.room_again()
    await settle()
    world.link.said()
    both.remove(one)
    assert world.link.said() == [SharedSettled(one.handle, 0, [], [5])]
    assert two.sharers == 1
    both.rejoin(8)
    await settle()
    assert world.link.takes[-1].members[0].epoch == 8
    both.release()
    assert len(world.hub) == 1, "the one that left still has messages under way"


async def test_a_message_that_is_not_for_the_client_any_more_is_done() -> None:
    """Expired, or too large for it; options and identifier of the subscription go with what is sent."""
    world = World()
    source, window = world.member(4)
    source.choose(2, 9)
    await settle()
    outbound = FakeOutbound(window)
    outbound.refuses = True
    source.waiting += [(1, message(1 | FLAG_RETAIN)), (2, message(1 | FLAG_RETAIN))]
    assert source.send(outbound, 1, RecordView(source.waiting[0][1]), 1) == 0
    outbound.refuses = False
    assert source.send(outbound, 2, RecordView(source.waiting[0][1]), 1) == 1
    assert outbound.sent == [(b"a", 1, (9,))]
    assert outbound.retained == [True]
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 0, [1], [])]


async def test_room_is_told_once_it_is_worth_a_frame() -> None:
    """A window that other subscriptions share frees slot by slot."""
    world = World()
    source, window = world.member(0)
    await settle()
    source.room_again()
    window.in_flight_max = 8
    source.credit = 7
    source.room_again()
    await settle()
    assert world.link.frames == 0
    source.credit = 6
    source.room_again()
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 2, [], [])]


async def test_qos_2_of_a_session_without_expiry_is_for_nobody_else() -> None:
    """Said when it is sent, and again after a loss of the broker until the client has it."""
    world = World()
    source, window = world.member(4, qos=2)
    await settle()
    source.waiting += [(1, message(2)), (2, message(2)), (3, message(1))]
    outbound = FakeOutbound(window)
    for offset, qos in ((1, 2), (2, 2), (3, 1)):
        source.send(outbound, offset, RecordView(source.waiting[0][1]), qos)
    await settle()
    assert world.link.said()[0].sent == [1, 2]
    source.acknowledge(1)
    source.join("c", 2, lambda: None)
    await settle()
    (said,) = world.link.said()
    assert (said.done, said.sent) == ([1], [2])
    window.steps = Qos2Steps()  # a kept session notes it instead
    source.waiting.append((4, message(2)))
    source.send(outbound, 4, RecordView(source.waiting[0][1]), 2)
    assert source.sent == []
    both = Memberships(world.hub, window, lambda: None)
    assert both.at(7) is None
    member = both.add("$share/g/a", 7, 1, "c", 1)
    assert both.at(7) is member
    member.choose(2, 0)
    assert member.retain_as_published
