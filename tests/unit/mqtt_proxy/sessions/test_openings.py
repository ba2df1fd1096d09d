"""Several CONNECTs of one client id: one is opened at a time, only the newest waits, and a fight has a pace."""

from __future__ import annotations

import asyncio

import pytest

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.properties import SESSION_EXPIRY
from mqtt_proxy.sessions import connecting, openings
from mqtt_proxy.sessions.openings import Openings
from tests.support.clock import ManualClock
from tests.unit.mqtt_proxy.rig import Rig, Wire, running, settle

BUSY, UNAVAILABLE, TAKEN_OVER = 0x89, 3, 0x8E


class FakeConnect:
    """A CONNECT of which the test decides when it has left."""

    def __init__(self, user: str | None = None) -> None:
        self.user = user
        self.has_left = False
        self.opened = 0
        self.delays: list[int] = []
        self.told = 0
        self.fails = False

    def open(self) -> None:
        """Counted."""
        self.opened += 1
        if self.fails:
            raise RuntimeError("a bug of ours")

    def left(self) -> None:
        """Counted."""
        self.told += 1

    def superseded(self, delay_ms: int) -> None:
        """Noted."""
        self.delays.append(delay_ms)


def test_only_the_newest_waits() -> None:
    """Neither the one under way nor another client id is disturbed; nothing is kept once all are open."""
    pending, ones = Openings(ManualClock()), [FakeConnect() for _ in range(5)]
    for one in ones:
        pending.enter("a", one)
    other = FakeConnect()
    pending.enter("b", other)
    assert ([one.opened for one in ones], other.opened) == ([1, 0, 0, 0, 0], 1)
    assert [one.delays for one in ones] == [[], [0], [0], [0], []]
    pending.answered("a")
    assert [one.opened for one in ones] == [1, 0, 0, 0, 1]
    pending.answered("a")
    pending.answered("b")
    assert len(pending) == 0


def test_one_that_has_left_costs_nothing() -> None:
    pending, first, second = Openings(ManualClock()), FakeConnect(), FakeConnect()
    pending.enter("a", first)
    pending.enter("a", second)
    second.has_left = True
    pending.answered("a")
    assert (second.opened, second.told, len(pending)) == (0, 1, 0), "nothing else closes a socket that is not read"


def test_one_that_fails_does_not_keep_the_client_id() -> None:
    """Whoever comes next has its turn, waiting already or not."""
    pending, first, second, third = Openings(ManualClock()), FakeConnect(), FakeConnect(), FakeConnect()
    first.fails = True
    with pytest.raises(RuntimeError):
        pending.enter("a", first)
    assert len(pending) == 0
    pending.enter("a", second)
    third.fails = True
    pending.enter("a", third)
    with pytest.raises(RuntimeError):
        pending.answered("a")
    assert (second.opened, third.opened, len(pending)) == (1, 1, 0)


def test_nobody_supersedes_another_user() -> None:
    pending, ann = Openings(ManualClock()), FakeConnect("ann")
    pending.enter("a", FakeConnect("ann"))
    assert not pending.foreign("a", "bob")
    pending.enter("a", ann)
    assert pending.foreign("a", "bob")
    assert not pending.foreign("a", "ann")
    assert not pending.foreign("b", "bob")
    ann.has_left = True
    assert not pending.foreign("a", "bob")


async def test_an_id_that_is_fought_for_is_opened_at_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first take-overs are free; then those that are superseded wait for their refusal."""
    monkeypatch.setattr(openings, "TAKE_OVERS_BURST", 2.0)
    monkeypatch.setattr(openings, "TAKE_OVERS_PER_S", 100.0)
    clock = ManualClock()
    pending, ones = Openings(clock), [FakeConnect() for _ in range(5)]
    for one in ones[:3]:
        pending.enter("a", one)
        assert one.opened
        pending.answered("a")
        pending.taken_over("a")
    for one in ones[3:]:
        pending.enter("a", one)
    assert [one.opened for one in ones] == [1, 1, 1, 0, 0]
    assert ones[3].delays == [openings.SUPERSEDED_DELAY_MS]
    clock.advance_ms(1_000)
    while not ones[4].opened:
        await asyncio.sleep(0.001)
    pending.answered("a")
    assert len(pending) == 0


async def fought(rig: Rig, level: int) -> list[Wire]:
    """Four CONNECTs of one client id, the first of which the broker keeps waiting."""
    rig.broker.parked = frozenset({"a"})
    wires = [Wire(rig) for _ in range(4)]
    for wire in wires:
        wire.send(packets.Connect("a", False, 0, level=level, properties={SESSION_EXPIRY: 600} if level == 5 else None))
    await settle()
    return wires


@pytest.mark.parametrize(("level", "busy"), [(4, UNAVAILABLE), (5, BUSY)])
async def test_each_loser_gets_its_connack(level: int, busy: int) -> None:
    """The broker is asked for the first and for the last, and for neither twice; no close is refused."""
    async with running() as rig:
        wires = await fought(rig, level)
        assert len(rig.broker.held) == 1
        assert [[one.code for one in wire.received()] for wire in wires] == [[], [busy], [busy], []]
        rig.broker.release()
        await settle()
        first, last = wires[0].received(), wires[3].received()
        assert [type(one).__name__ for one in first] == ["Connack"] + ["Disconnect"] * (level == 5)
        assert first[0].code == 0
        assert level == 4 or first[1].reason == TAKEN_OVER
        assert [one.code for one in last] == [0]
        assert (len(rig.broker.opened), len(rig.broker.closed)) == (2, 1)
        assert rig.count("connects_refused_total{superseded}") == 2
        assert not rig.services.openings


async def test_one_that_another_proxy_takes_before_its_connack_is_refused() -> None:
    """And hands the session in at once, if that is what the broker waits for."""
    async with running() as rig:
        rig.broker.parked = frozenset({"a"})
        wire = Wire(rig)
        wire.send(packets.Connect("a", False, 0, level=5, properties={SESSION_EXPIRY: 600}))
        await settle()
        wire.handler.fence(1, hand_over=True)
        rig.broker.release()
        await settle()
        assert [one.code for one in wire.received()] == [BUSY]
        assert [(one.client_id, one.epoch) for one in rig.broker.closed] == [("a", 1)]


async def test_a_session_that_is_opened_too_late_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client was refused; without that the broker would keep its will and its state as those of a live client."""
    monkeypatch.setattr(connecting, "REQUEST_TIMEOUT_MS", 20)
    async with running() as rig:
        rig.broker.parked = frozenset({"a"})
        first, second = Wire(rig), Wire(rig)
        first.send(packets.Connect("a", False, 0, level=4))
        await settle()
        second.send(packets.Connect("a", False, 0, level=4))
        received: list[int] = []
        while len(received) < 2:
            await asyncio.sleep(0.001)
            received += [one.code for wire in (first, second) for one in wire.received()]
        assert received == [UNAVAILABLE, UNAVAILABLE]
        assert len(rig.broker.held) == 1
        rig.broker.release()
        await settle()
        assert [(one.client_id, one.epoch) for one in rig.broker.closed] == [("a", 1)]
        assert not rig.services.openings


async def test_a_close_that_comes_too_late_is_no_fault() -> None:
    """Another connection has the session: the broker refuses the close, and nothing else happens."""
    async with running() as rig:
        wire = await rig.client("a", clean=False)
        rig.broker.sessions["a"].epoch += 1
        wire.lose()
        await settle()
        assert len(rig.broker.closed) == 1
        assert not rig.services.tasks
