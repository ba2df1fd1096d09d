"""Packets of MQTT 5: what is read back, what is refused and how."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.decode import decode, split
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation
from tests.unit.mqtt_proxy.mqtt.samples5 import EVERYTHING, PUBLISHES


@pytest.mark.parametrize("packet", EVERYTHING, ids=lambda packet: type(packet).__name__)
def test_round_trip(packet: packets.Packet) -> None:
    """What was encoded is decoded, with everything in it."""
    assert decode(*split(encode(packet, 5)), 5) == packet


@given(PUBLISHES)
def test_any_publish_round_trips(publish: packets.Publish) -> None:
    """Properties, alias and payload in every combination."""
    assert decode(*split(encode(publish, 5)), 5) == publish


@pytest.mark.parametrize("packet", EVERYTHING, ids=lambda packet: type(packet).__name__)
def test_a_packet_cut_anywhere(packet: packets.Packet) -> None:
    """A body that ends too early is refused or is another valid packet, never an exception of another kind."""
    first, body = split(encode(packet, 5))
    for stop in range(len(body)):
        try:
            shorter = decode(first, body[:stop], 5)
        except PacketViolation:
            continue
        assert shorter != packet
        assert decode(*split(encode(shorter, 5)), 5) == shorter


@given(st.sampled_from(EVERYTHING), st.data())
def test_a_changed_byte(packet: packets.Packet, data: st.DataObject) -> None:
    """One wrong byte anywhere: a violation, or a packet that can be encoded again."""
    first, body = split(encode(packet, 5))
    if not body:
        return
    at = data.draw(st.integers(0, len(body) - 1))
    changed = body[:at] + bytes((data.draw(st.integers(0, 255)),)) + body[at + 1 :]
    try:
        other = decode(first, changed, 5)
    except PacketViolation:
        return
    level = other.level if isinstance(other, packets.Connect) else 5
    assert decode(*split(encode(other, level)), level) == other


@pytest.mark.parametrize(
    ("first", "body", "reason"),
    [
        (0x30, b"\0\x01a", "malformed_packet"),  # no property length
        (0x30, b"\0\x01a\x05\x01\x01", "malformed_packet"),  # properties beyond the end
        (0x30, b"\0\x01a\x02\x01\x02", "protocol_error"),  # payload format 2
        (0x30, b"\0\x01a\x03\x23\0\0", "topic_alias"),  # alias 0
        (0x30, b"\0\x01a\x06\x08\0\x03a/#", "protocol_error"),  # response topic with a wildcard
        (0x36, b"\0\x01a\0\x01\0", "invalid_qos"),
        (0x38, b"\0\x01a\0", "reserved_flags"),
        (0x40, b"\0\x01\x01", "malformed_packet"),  # no such reason code in PUBACK
        (0x40, b"\0\x01\0\0x", "malformed_packet"),
        (0x62, b"\0\x01\x10", "malformed_packet"),
        (0x82, b"\0\x01\0", "protocol_error"),  # no filter
        (0x82, b"\0\x01\0\0\x01a", "malformed_packet"),  # no options
        (0x82, b"\0\x01\0\0\x01a\x40", "malformed_packet"),
        (0x82, b"\0\x01\0\0\x01a\x03", "protocol_error"),
        (0x82, b"\0\x01\0\0\x01a\x30", "protocol_error"),
        (0x82, b"\0\x01\0\0\x0a$share/g/a\x04", "protocol_error"),
        (0x82, b"\0\x01\x02\x0b\0\0\x01a\x00", "protocol_error"),  # subscription identifier 0
        (0xA2, b"\0\x01\0", "protocol_error"),
        (0x20, b"\0\0", "malformed_packet"),
        (0x90, b"\0\x01\0", "malformed_packet"),
        (0xE0, b"\x01", "malformed_packet"),
        (0xF0, b"\x87", "malformed_packet"),
        (0xF1, b"", "reserved_flags"),
        (0x10, b"\0\x04MQTT\x05\x02\0\0\x03\x16\0\0\0\x01a", "protocol_error"),  # data without a method
        (0x10, b"\0\x04MQTT\x05\x06\0\0\0\0\x01a\0", "malformed_packet"),  # will properties and nothing else
    ],
)
def test_refusals(first: int, body: bytes, reason: str) -> None:
    """Each broken rule has its reason."""
    with pytest.raises(PacketViolation) as refused:
        decode(first, body, 5)
    assert refused.value.reason == reason
