"""A member asks for what its window has free, says what its client has, and gives back what it cannot send."""

from __future__ import annotations

from collections.abc import Callable

from mqtt_proxy.bridge.shared import WINDOW_MAX, SharedHub, SharedSource
from mqtt_proxy.metrics import ProxyMetrics
from remoting.protocol.codes import RequestCode
from remoting.protocol.commands import Command
from remoting.protocol.shared_body import (
    SharedSettle,
    SharedSettled,
    SharedTake,
    SharedTaken,
    decode,
    encode,
    encode_given,
)
from runtime.metrics import Registry
from tests.unit.mqtt_proxy.bridge.rig import settle


class FakeLink:
    """Notes what is said; pushes and losses are made by the test."""

    def __init__(self) -> None:
        self.up = True
        self.takes: list[SharedTake] = []
        self.settles: list[SharedSettled] = []
        self.frames = 0
        self.joins = True
        self.error: Exception | None = None

    def on_push(self, code: int, callback: Callable[[Command], None]) -> None:
        assert code == RequestCode.SHARED_GIVEN
        self._push = callback

    def on_down(self, callback: Callable[[str], None]) -> None:
        self._down = callback

    def call(self, code: int, body: bytes, done: Callable[[bytes, Exception | None], None]) -> None:
        assert code == RequestCode.SHARED_TAKE
        self.takes.append(decode(SharedTake, body))
        done(encode(SharedTaken([self.joins] * len(self.takes[-1].members))), self.error)

    def oneway(self, code: int, body: bytes) -> None:
        assert code == RequestCode.SHARED_SETTLE
        self.frames += 1
        self.settles += decode(SharedSettle, body).members

    def give(self, *given: tuple[int, int]) -> None:
        self._push(Command(RequestCode.SHARED_GIVEN, body=encode_given([(*one, b"record") for one in given])))

    def lose(self) -> None:
        self.up = False
        self._down("gone")

    def said(self) -> list[SharedSettled]:
        said, self.settles = self.settles, []
        return said


class FakeSession:
    """A window of a size."""

    def __init__(self, free: int = 10) -> None:
        self.window_free = free


class World:
    """A hub with members whose sessions count their wakes."""

    def __init__(self) -> None:
        self.link = FakeLink()
        self.metrics = ProxyMetrics(Registry())
        self.hub = SharedHub(self.link, self.metrics)
        self.wakes = 0

    def member(self, free: int = 10, qos: int = 1, epoch: int = 1) -> tuple[SharedSource, FakeSession]:
        session = FakeSession(free)
        source = SharedSource(self.hub, session, "$share/g/a", 7, qos)
        source.join("c", epoch, self._wake)
        return source, session

    def _wake(self) -> None:
        self.wakes += 1


def send_all(source: SharedSource, session: FakeSession, qos: int = 1) -> list[int]:
    """What a delivery does with what waits."""
    sent = [offset for offset, _ in source.waiting]
    for offset in sent:
        session.window_free -= 1 if qos else 0
        source.sent(offset, qos)
    return sent


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
    source, _session = world.member(10)
    source.sharers = 3
    await settle()
    assert world.link.takes[0].members[0].credit == 3


async def test_an_acknowledgement_settles_and_asks_for_more_in_one_frame() -> None:
    """One SHARED_SETTLE per turn for all members."""
    world = World()
    one, session = world.member(2)
    two, other = world.member(2)
    await settle()
    world.link.give((one.handle, 4), (two.handle, 5), (one.handle, 6))
    assert world.wakes == 3
    assert send_all(one, session) == [4, 6]
    assert send_all(two, other) == [5]
    await settle()
    assert world.link.frames == 0, "nothing to say: the windows are full or asked for"
    session.window_free += 1
    one.acknowledge(4)
    one.acknowledge(4)  # again: says nothing new
    other.window_free += 1
    two.acknowledge(5)
    await settle()
    assert world.link.frames == 1
    assert world.link.said() == [SharedSettled(one.handle, 1, [4], []), SharedSettled(two.handle, 1, [5], [])]


async def test_a_message_of_qos_0_is_done_when_it_is_sent() -> None:
    """Nobody will acknowledge it."""
    world = World()
    source, session = world.member(2)
    await settle()
    world.link.give((source.handle, 1))
    send_all(source, session, qos=0)
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 1, [1], [])]


async def test_what_does_not_fit_goes_back() -> None:
    """A full socket: what waits and what still comes is for others; nothing is asked for until there is room."""
    world = World()
    source, _session = world.member(3)
    await settle()
    world.link.give((source.handle, 1))
    source.set_writable(False)
    world.link.give((source.handle, 2))
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 0, [], [1, 2])]
    source.set_writable(True)
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 2, [], [])]


async def test_room_is_told_once_it_is_worth_a_frame() -> None:
    """A window that other subscriptions share frees slot by slot."""
    world = World()
    source, session = world.member(0)
    await settle()
    source.room_again()
    session.window_free = 8
    source.credit = 7
    source.room_again()
    await settle()
    assert world.link.frames == 0
    source.credit = 6
    source.room_again()
    await settle()
    assert world.link.said() == [SharedSettled(source.handle, 2, [], [])]


async def test_after_a_loss_a_member_joins_again_with_what_it_has() -> None:
    """What was not sent others get; what is unacknowledged, or acknowledged and not said, is claimed."""
    world = World()
    source, session = world.member(5)
    await settle()
    old = source.handle
    world.link.give((old, 1), (old, 2))
    send_all(source, session)
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
    assert world.metrics.shared_late.value == 1


async def test_leaving_gives_back_what_waits_and_stays_for_what_is_under_way() -> None:
    """[MQTT-3.10.4-3] then the member is forgotten."""
    world = World()
    source, session = world.member(5)
    await settle()
    world.link.give((source.handle, 1), (source.handle, 2))
    session.window_free -= 1
    source.sent(1, 1)
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
    source, _session = world.member(5)
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
    assert world.metrics.refused_subscriptions.child("shared_not_joined").value == 1
    world.link.error = RuntimeError("refused")
    world.member(5)
    await settle()
    assert world.metrics.refused_subscriptions.child("shared_not_joined").value == 2
