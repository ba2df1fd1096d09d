"""Acknowledgements leave in the order of receipt; a QoS 2 id is new once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.mqtt.codec.encode import PUBACK_WORD, PUBCOMP_WORD, PUBREC_WORD, acknowledgements
from mqtt_proxy.mqtt.session.incoming import CONFIRMED, RELEASED, Incoming
from remoting.protocol.errors import LocalMisuse


def pubacks(*ids: int) -> bytes:
    return acknowledgements([PUBACK_WORD | packet_id for packet_id in ids])


@given(st.lists(st.integers(1, 9), max_size=12), st.randoms(), st.integers(1, 5))
def test_any_order_of_confirming(ids: list[int], shuffled: object, size: int) -> None:
    """[MQTT-4.6.0-2], with ids used again while they wait."""
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


def test_confirming_what_did_not_come() -> None:
    """An id nobody waits for is our own bug."""
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
    assert [incoming.release(7), incoming.release(7), incoming.release(9)] == [CONFIRMED, RELEASED, None]
    assert incoming.receive_exactly_once(7) == (False, b"")
    assert incoming.confirmed() == [7]
    assert incoming.complete([7]) == acknowledgements([PUBCOMP_WORD | 7])
    assert incoming.receive_exactly_once(7) == (True, b"")
    with pytest.raises(LocalMisuse):
        incoming.complete([7])


def test_what_nobody_has_subscribed_to_is_said_and_the_exchange_goes_on() -> None:
    """0x10 is a success: PUBREL is awaited as behind any other PUBREC; a repetition is acknowledged plainly."""
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
    """A refused QoS 2 id is new again; what the quota counts follows."""
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


def test_what_one_session_takes_no_other_has() -> None:
    """Idle sessions share one empty table; the first QoS 2 id gives its session one of its own, so does a resume."""
    one, resumed, idle = Incoming(), Incoming(), Incoming()
    assert one.take_new(7)
    resumed.restore([8])
    assert (one.in_use, resumed.in_use, idle.in_use) == (1, 1, 0)
    assert idle.take_new(7)
    assert Incoming().exactly_once == {}
    assert (list(one.exactly_once), list(resumed.exactly_once)) == ([7], [8])
