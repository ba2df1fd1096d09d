"""Packet ids and the window against a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.mqtt.outgoing import Outgoing
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
    outgoing.restore([(1, "a"), (2, "b"), (65_534, "c")])
    assert [outgoing.assign(n) for n in range(3)] == [65_535, 3, 4]


def test_restored_window() -> None:
    """A larger window than allowed is kept but takes nothing new; tokens are replaced in place."""
    outgoing = Outgoing(2)
    outgoing.restore([(5, "a"), (3, "b"), (9, "c")])
    assert outgoing.free == 0
    outgoing.replace(3, "B")
    assert list(outgoing.window.items()) == [(5, "a"), (3, "B"), (9, "c")]
    outgoing.forget(5)
    outgoing.forget(5)
    with pytest.raises(LocalMisuse):
        outgoing.replace(5, "x")
    with pytest.raises(LocalMisuse):
        outgoing.assign("x")


@pytest.mark.parametrize("ids", [[0], [65_536], [3, 3]])
def test_a_window_that_cannot_be(ids: list[int]) -> None:
    """Ids out of range or twice are our own bug."""
    with pytest.raises(LocalMisuse):
        Outgoing(9).restore([(packet_id, None) for packet_id in ids])
