"""Packet ids and the window against a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.mqtt.session.outgoing import (
    PHASE_PUBLISH,
    PHASE_PUBREL,
    PUBLISHED,
    RECEIVED,
    RELEASED,
    RESERVED,
    Outgoing,
    Qos2Steps,
)
from remoting.protocol.errors import LocalMisuse


@given(st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=60))
def test_ids_in_use_are_never_given_out(steps: list[int | None]) -> None:
    """None = send, a number = acknowledge the n-th oldest; the order stays the order of sending."""
    outgoing = Outgoing(4)
    model: list[int] = []
    for step in steps:
        if step is None and outgoing.free:
            packet_id = outgoing.assign(len(model))
            assert packet_id not in model
            model.append(packet_id)
        elif step is not None and step < len(model):
            del outgoing.window[model.pop(step)]
        assert list(outgoing.window) == model
        assert outgoing.free == 4 - len(model)


def test_ids_wrap_around_those_in_use() -> None:
    """After 65,535 comes 1, or the next one that is free."""
    outgoing = Outgoing(10)
    outgoing.restore([(1, "a", 0), (2, "b", 0), (65_534, "c", 0)])
    assert [outgoing.assign(n) for n in range(3)] == [65_535, 3, 4]


def test_restored_window() -> None:
    """A larger window than allowed is kept but takes nothing new; tokens are replaced in place."""
    outgoing = Outgoing(2)
    assert outgoing.restore([(5, "a", 0), (3, "b", 0), (9, "c", 1)]) == [9]
    assert outgoing.free == 0
    outgoing.replace(3, "B", 1)
    assert list(outgoing.window.items()) == [(5, "a"), (3, "B"), (9, "c")]
    outgoing.forget(5)
    outgoing.forget(5)
    with pytest.raises(LocalMisuse):
        outgoing.replace(5, "x", 1)
    with pytest.raises(LocalMisuse):
        outgoing.assign("x")


@pytest.mark.parametrize("ids", [[0], [65_536], [3, 3]])
def test_a_window_that_cannot_be(ids: list[int]) -> None:
    """Ids out of range or twice are our own bug."""
    with pytest.raises(LocalMisuse):
        Outgoing(9).restore([(packet_id, None, 0) for packet_id in ids])


def test_resends_wait_for_the_receive_maximum() -> None:
    """Two may be under way: the third resend waits until one is done, what is only released does not count."""
    outgoing = Outgoing(2)
    outgoing.restore([(1, "a", 0), (2, "b", 1), (3, "c", 0), (4, "d", 0)])
    assert [outgoing.hold(packet_id, b"%d" % packet_id) for packet_id in (1, 3, 4)] == [False, False, True]
    assert outgoing.resend() == []
    outgoing.forget(2)
    assert outgoing.resend() == []
    outgoing.forget(1)
    assert outgoing.resend() == [b"4"]
    assert outgoing.held is None


def test_phases_go_one_way() -> None:
    """A step out of turn is our own bug; what the client has is resumed with its PUBREL."""
    outgoing = Outgoing(9)
    packet_id = outgoing.assign("x")
    outgoing.enter(packet_id, RESERVED)
    with pytest.raises(LocalMisuse):
        outgoing.advance(packet_id, RECEIVED, RELEASED)
    outgoing.advance(packet_id, RESERVED, PUBLISHED)
    assert outgoing.inflight() == [(packet_id, "x", PHASE_PUBLISH)]
    outgoing.advance(packet_id, PUBLISHED, RECEIVED)
    assert outgoing.inflight() == [(packet_id, "x", PHASE_PUBREL)]


def test_the_phases_of_one_session_are_no_other_ones() -> None:
    """Idle sessions share one empty table; the first QoS 2 delivery gives its session one of its own."""
    one, resumed = Outgoing(4), Outgoing(4)
    one.enter(one.assign("token"), PUBLISHED)
    resumed.restore([(9, "token", PHASE_PUBREL)])
    assert (one.phases, resumed.phases) == ({1: PUBLISHED}, {9: RELEASED})
    assert Outgoing(4).phases == {}


def test_steps_are_handed_out_once() -> None:
    steps = Qos2Steps()
    steps.park(1, "a", (b"x", b"y"))
    steps.park(2, "b", (b"z",))
    steps.finished.append(7)
    assert steps.take_reserved() == [(1, "a"), (2, "b")]
    assert steps.take_finished() == [7]
    assert (steps.take_reserved(), steps.take_finished()) == ([], [])
    assert steps.unpark([2, 3]) == [(2, (b"z",))]
    assert steps.unpark([1, 2]) == [(1, (b"x", b"y"))]
