"""Ids stay in the window until they are acknowledged; acknowledgements leave in the order of receipt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.mqtt.codec.encode import PUBACK_WORD, PUBCOMP_WORD, PUBREC_WORD, acknowledgements
from mqtt_proxy.mqtt.session.in_flight import (
    COMPLETING,
    CONFIRMED,
    LANE_BYTES_MAX,
    PHASE_PUBLISH,
    PHASE_PUBREL,
    PUBLISHED,
    RECEIVED,
    RELEASED,
    RESERVED,
    DeliveryOrigin,
    Incoming,
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
    """After 65,535 comes 1, or the next free id."""
    outgoing = Outgoing(10)
    outgoing.restore([(1, "a", 0), (2, "b", 0), (65_534, "c", 0)])
    assert [outgoing.assign(n) for n in range(3)] == [65_535, 3, 4]


def test_restored_window() -> None:
    """A larger window than allowed is kept but accepts nothing new; tokens are replaced in place."""
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
def test_an_invalid_window(ids: list[int]) -> None:
    """Ids out of range or repeated are a bug."""
    with pytest.raises(LocalMisuse):
        Outgoing(9).restore([(packet_id, None, 0) for packet_id in ids])


def test_resends_wait_for_the_receive_maximum() -> None:
    """Two may be in flight: the third resend waits until one is done; a message that is only released does not
    count."""
    outgoing = Outgoing(2)
    outgoing.restore([(1, "a", 0), (2, "b", 1), (3, "c", 0), (4, "d", 0)])
    assert [outgoing.keep(packet_id, b"%d" % packet_id) for packet_id in (1, 3, 4)] == [False, False, True]
    assert outgoing.resend() == []
    outgoing.forget(2)
    assert outgoing.resend() == []
    outgoing.forget(1)
    assert outgoing.resend() == [b"4"]
    assert outgoing.held is None


def test_phases_go_one_way() -> None:
    """A step out of order is a bug; what the client has received is resumed with its PUBREL."""
    outgoing = Outgoing(9)
    packet_id = outgoing.assign("x")
    outgoing.enter(packet_id, RESERVED)
    with pytest.raises(LocalMisuse):
        outgoing.advance(packet_id, RECEIVED, RELEASED)
    outgoing.advance(packet_id, RESERVED, PUBLISHED)
    assert outgoing.inflight() == [(packet_id, "x", PHASE_PUBLISH)]
    outgoing.advance(packet_id, PUBLISHED, RECEIVED)
    assert outgoing.inflight() == [(packet_id, "x", PHASE_PUBREL)]


def test_sessions_do_not_share_phases() -> None:
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
    assert steps.unpark([2, 3]) == []
    assert steps.unpark([1, 2]) == [(1, (b"x", b"y")), (2, (b"z",))]
    assert not steps.waits


def test_what_follows_a_parked_publish_leaves_behind_it() -> None:
    """Of any QoS, in the order of delivery; what follows nothing is not kept."""
    outgoing = Outgoing(8)
    assert outgoing.lane() is None
    steps = outgoing.steps = Qos2Steps()
    assert outgoing.lane() is None
    steps.park(1, "a", (b"1",))
    assert outgoing.lane() is steps
    steps.follow((b"2",))
    steps.park(3, "b", (b"3",))
    steps.follow((b"4",))
    assert [parts for _number, parts in steps.unpark([3])] == []
    assert [parts for _number, parts in steps.unpark([1])] == [(b"1",), (b"2",), (b"3",), (b"4",)]
    assert outgoing.lane() is None


def test_a_full_lane_holds_deliveries_back_and_says_when_it_is_not() -> None:
    outgoing, woken = Outgoing(8), []
    steps = outgoing.steps = Qos2Steps()
    steps.park(1, "a", (b"1",))
    assert not outgoing.must_wait(lambda: woken.append("early"))
    steps.follow((bytes(LANE_BYTES_MAX),))
    assert outgoing.must_wait(lambda: woken.append("room"))
    assert len(steps.unpark([1])) == 2
    assert woken == ["room"]
    assert not outgoing.must_wait(lambda: woken.append("late"))


def pubacks(*ids: int) -> bytes:
    return acknowledgements([PUBACK_WORD | packet_id for packet_id in ids])


@given(st.lists(st.integers(1, 9), max_size=12), st.randoms(), st.integers(1, 5))
def test_any_order_of_confirming(ids: list[int], shuffled: object, size: int) -> None:
    """[MQTT-4.6.0-2], with ids used again while others wait."""
    incoming = Incoming()
    incoming.pending += ids
    confirmed = list(ids)
    shuffled.shuffle(confirmed)  # type: ignore[attr-defined]
    output = b"".join(incoming.acknowledge(confirmed[n : n + size]) for n in range(0, len(confirmed), size))
    assert output == pubacks(*ids)
    assert incoming.pending == []


def test_early_ones_wait() -> None:
    """The second cannot leave before the first."""
    incoming = Incoming()
    incoming.pending += [4, 5, 6]
    assert incoming.acknowledge([5]) == b""
    assert incoming.acknowledge([6]) == b""
    assert incoming.acknowledge([4]) == pubacks(4, 5, 6)


def test_confirming_an_unknown_id() -> None:
    """An id that does not wait for confirmation is a bug."""
    incoming = Incoming()
    incoming.pending += [4]
    with pytest.raises(LocalMisuse, match="packet id 5"):
        incoming.acknowledge([5])


def test_exactly_once() -> None:
    """New once, PUBREC once durable, repeated PUBREC after that, new again after PUBREL."""
    incoming = Incoming()
    assert incoming.receive_exactly_once(7) == (True, b"")
    assert incoming.receive_exactly_once(7) == (False, b"")
    incoming.release(7)  # a PUBREL before its PUBREC changes nothing
    incoming.pending.append(8)
    pubrec = acknowledgements([PUBREC_WORD | 7])
    assert incoming.acknowledge([7, 8]) == pubrec + pubacks(8)
    assert incoming.receive_exactly_once(7) == (False, pubrec)
    assert [incoming.release(7), incoming.release(7), incoming.release(9)] == [CONFIRMED, COMPLETING, None]
    assert incoming.receive_exactly_once(7) == (False, b"")
    assert incoming.confirmed() == [7]
    assert incoming.complete([7]) == acknowledgements([PUBCOMP_WORD | 7])
    assert incoming.receive_exactly_once(7) == (True, b"")
    with pytest.raises(LocalMisuse):
        incoming.complete([7])


def test_no_matching_subscribers_keeps_the_exchange() -> None:
    """0x10 is a success: PUBREL is awaited as after any other PUBREC; a repetition is acknowledged plainly."""
    incoming = Incoming()
    incoming.receive_exactly_once(7)
    incoming.pending += [8, 9]
    incoming.say([7, 9], b"\x10")
    assert incoming.acknowledge([8, 9]) == b""
    assert incoming.acknowledge([7]) == b"\x50\x03\x00\x07\x10" + pubacks(8) + b"\x40\x03\x00\x09\x10"
    assert incoming.confirmed() == [7]
    assert incoming.receive_exactly_once(7) == (False, acknowledgements([PUBREC_WORD | 7]))
    assert incoming.release(7) == CONFIRMED
    assert incoming.complete([7]) == acknowledgements([PUBCOMP_WORD | 7])
    assert incoming.in_use == 0
    incoming.pending.append(9)
    assert incoming.acknowledge([9]) == pubacks(9)


def test_refusals_keep_the_order_and_free_the_id() -> None:
    """[MQTT-4.6.0-3] A refused QoS 2 id is new again; the quota's count follows."""
    incoming = Incoming()
    incoming.restore([30])
    incoming.receive_exactly_once(7)
    incoming.pending.append(8)
    incoming.receive_exactly_once(9)
    assert incoming.in_use == 4
    assert incoming.acknowledge([8], b"\x87") == b""
    assert incoming.acknowledge([7], b"\x97\x00") == b"\x50\x04\x00\x07\x97\x00" + b"\x40\x03\x00\x08\x87"
    assert incoming.in_use == 2
    assert incoming.acknowledge([9]) == acknowledgements([PUBREC_WORD | 9])
    assert incoming.in_use == 2
    assert incoming.receive_exactly_once(7) == (True, b"")


def test_sessions_do_not_share_ids() -> None:
    """Idle sessions share one empty table; the first QoS 2 id gives its session one of its own, and so does a
    resume."""
    one, resumed, idle = Incoming(), Incoming(), Incoming()
    assert one.take_new(7)
    resumed.restore([8])
    assert (one.in_use, resumed.in_use, idle.in_use) == (1, 1, 0)
    assert idle.take_new(7)
    assert Incoming().exactly_once == {}
    assert (list(one.exactly_once), list(resumed.exactly_once)) == ([7], [8])


def test_a_place_names_its_queue_and_takes_acknowledgements() -> None:
    """Acknowledging moves nothing; a closing session notes what is unacknowledged from here."""
    place = DeliveryOrigin(7)
    place.acknowledge(3)
    assert (place.queue_id, place.noted, place.flow_bit) == (7, True, 0)
