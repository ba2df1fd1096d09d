"""The hand-made encoders give the bytes of the table-driven ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.mqtt.codec import encode as made
from mqtt_proxy.mqtt.codec import packets
from remoting.protocol.errors import LocalMisuse


@given(st.binary(max_size=300), st.integers(0, 20_000), st.integers(0, 2), st.booleans(), st.booleans())
def test_publish_head(topic: bytes, payload_size: int, qos: int, retain: bool, dup: bool) -> None:
    """Head, id and payload side by side are the whole packet."""
    payload = bytes(payload_size)
    packet = packets.Publish(topic, payload, qos, retain, dup and qos > 0, 0x0102 if qos else 0)
    head = made.publish_head(topic, payload_size, qos, retain, packet.dup)
    assert head + (b"\x01\x02" if qos else b"") + payload == made.encode(packet)


@given(st.lists(st.integers(1, 65_535), max_size=9))
def test_acknowledgements(ids: list[int]) -> None:
    """One pack call for the run."""
    assert made.acknowledgements([made.PUBACK_WORD | n for n in ids]) == b"".join(
        made.encode(packets.Puback(n)) for n in ids
    )
    assert made.acknowledgements([made.PUBREC_WORD | n for n in ids]) == b"".join(
        made.encode(packets.Pubrec(n)) for n in ids
    )


def test_small_answers() -> None:
    """CONNACK, SUBACK, UNSUBACK, PUBCOMP, PINGRESP."""
    assert made.connack(True, 0) == made.encode(packets.Connack(True, 0)) == b"\x20\x02\x01\x00"
    assert made.suback(7, [0, 1, 128]) == made.encode(packets.Suback(7, [0, 1, 128]))
    assert made.suback(7, [1] * 200) == made.encode(packets.Suback(7, [1] * 200))
    assert made.unsuback(258) == made.encode(packets.Unsuback(258))
    assert made.acknowledgements([made.PUBCOMP_WORD | 258]) == made.encode(packets.Pubcomp(258))
    assert made.encode(packets.Pingresp()) == made.PINGRESP_BYTES


def test_what_the_wire_cannot_carry() -> None:
    """A topic of more than a u16 is our own mistake."""
    with pytest.raises(LocalMisuse):
        made.publish_head(bytes(65_536), 0, 0, False)
