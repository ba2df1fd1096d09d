"""The hand-written encoders give the same bytes as the table-driven ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.mqtt.codec import encode as made
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.decode import decode, split
from mqtt_proxy.mqtt.codec.encode import (
    acknowledgement5,
    auth5,
    connack5,
    disconnect5,
    encode,
    publish_head,
    publish_properties,
    reason_properties,
    suback5,
    unsuback5,
)
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.properties import MessageProperties


@given(st.binary(max_size=300), st.integers(0, 20_000), st.integers(0, 2), st.booleans(), st.booleans())
def test_publish_head(topic: bytes, payload_size: int, qos: int, retain: bool, dup: bool) -> None:
    """Head, id and payload one after the other are the whole packet."""
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
    """A topic longer than a u16 is a mistake of the caller's."""
    with pytest.raises(LocalMisuse):
        made.publish_head(bytes(65_536), 0, 0, False)


def test_empty_fields_are_left_out() -> None:
    """A plain acknowledgement has four bytes, a plain DISCONNECT two."""
    assert encode(packets.Puback(1), 5) == b"\x40\x02\x00\x01" == acknowledgement5(0x40, 1, 0)
    assert disconnect5(0) == b"\xe0\x00" == encode(packets.Disconnect(), 5)
    assert auth5(0) == b"\xf0\x00"
    assert publish_properties(None) == b"\x00"


def test_answers_equal_the_encoded_packets() -> None:
    """CONNACK, SUBACK, UNSUBACK, PUBREL, DISCONNECT, AUTH with a reason."""
    why = reason_properties("why", [(b"a", b"b")])
    assert connack5(True, 0, why) == encode(packets.Connack(True, 0, why), 5)
    assert suback5(1, [0, 0x87], why) == encode(packets.Suback(1, [0, 0x87], why), 5)
    assert unsuback5(1, [0x11], why) == encode(packets.Unsuback(1, [0x11], why), 5)
    assert acknowledgement5(0x62, 1, 0x92, why) == encode(packets.Pubrel(1, 0x92, why), 5)
    assert disconnect5(0x8E, why) == encode(packets.Disconnect(0x8E, why), 5)
    assert auth5(0x18, {props.AUTH_METHOD: b"m"}) == encode(packets.Auth(0x18, {props.AUTH_METHOD: b"m"}), 5)


def test_the_remaining_expiry_replaces_the_original() -> None:
    """A receiver gets a shorter interval than the publisher sent; a message may have only that property."""
    for properties in (MessageProperties(expiry_s=60), None):
        block = publish_properties(properties, expiry_left_s=7, alias=2, subscription_ids=(1, 2))
        found, _ = props.read(block, 0, packets.PUBLISH)
        assert found == {props.MESSAGE_EXPIRY: 7, props.TOPIC_ALIAS: 2, props.SUBSCRIPTION_ID: [1, 2]}


def test_a_head_of_level_5() -> None:
    """With an empty property block after it the whole is the packet."""
    for qos, packet_id, size in ((0, 0, 3), (1, 7, 200), (2, 9, 0)):
        head = publish_head(b"a/b", size, qos, True, False, 5)
        behind = packet_id.to_bytes(2, "big") + b"\x00" if qos else b""
        sent = packets.Publish(b"a/b", bytes(size), qos, True, False, packet_id)
        assert head + behind + bytes(size) == encode(sent, 5)
        assert decode(*split(head + behind + bytes(size)), 5) == sent
