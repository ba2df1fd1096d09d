"""Decoding: round trips, every refusal by its reason, and arbitrary bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.decode import UnsupportedLevel, decode, level_of, split
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation
from tests.unit.mqtt_proxy.mqtt.samples5 import EVERYTHING
from tests.unit.mqtt_proxy.mqtt.samples5 import PUBLISHES as PUBLISHES5

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
IDS = st.integers(1, 65_535)
QOS = st.integers(0, 2)
WILLS = st.builds(packets.Will, TEXT.map(str.encode), st.binary(max_size=9), QOS, st.booleans())
CONNECTS = st.builds(
    packets.Connect,
    TEXT,
    st.booleans(),
    st.integers(0, 65_535),
    username=st.none() | TEXT,
    password=st.none() | st.binary(max_size=9),
    will=st.none() | WILLS,
).filter(lambda packet: packet.password is None or packet.username is not None)
PUBLISHES = st.one_of(
    st.builds(
        packets.Publish,
        TEXT.map(str.encode),
        st.binary(max_size=200),
        st.integers(1, 2),
        st.booleans(),
        st.booleans(),
        IDS,
    ),
    st.builds(
        packets.Publish,
        TEXT.map(str.encode),
        st.binary(max_size=200),
        st.just(0),
        st.booleans(),
        st.just(False),
        st.just(0),
    ),
)
PACKETS = st.one_of(
    CONNECTS,
    PUBLISHES,
    st.builds(packets.Connack, st.booleans(), st.integers(0, 5)),
    st.builds(packets.Puback, IDS),
    st.builds(packets.Pubrec, IDS),
    st.builds(packets.Pubrel, IDS),
    st.builds(packets.Pubcomp, IDS),
    st.builds(packets.Unsuback, IDS),
    st.builds(packets.Subscribe, IDS, st.lists(st.tuples(TEXT, QOS), min_size=1, max_size=5)),
    st.builds(packets.Suback, IDS, st.lists(st.sampled_from([0, 1, 2, 128]), min_size=1, max_size=5)),
    st.builds(packets.Unsubscribe, IDS, st.lists(TEXT, min_size=1, max_size=5)),
    st.builds(packets.Pingreq),
    st.builds(packets.Pingresp),
    st.builds(packets.Disconnect),
)


@given(PACKETS)
def test_round_trip(packet: packets.Packet) -> None:
    """Every packet is read as it was written."""
    assert decode(*split(encode(packet))) == packet


@given(st.integers(0, 255), st.binary(max_size=40))
def test_any_bytes_decode_or_violate(first: int, body: bytes) -> None:
    """Only PacketViolation is raised, and a decoded packet encodes to the same bytes."""
    try:
        packet = decode(first, body)
    except PacketViolation:
        return
    assert split(encode(packet)) == (first, body)


@given(PACKETS, st.data())
def test_broken_packets_decode_or_violate(packet: packets.Packet, data: st.DataObject) -> None:
    """The same for packets with one byte changed or cut, which get deeper into the decoders."""
    first, body = split(encode(packet))
    if body:
        at = data.draw(st.integers(0, len(body) - 1))
        body = body[:at] + data.draw(st.sampled_from([b"", b"\0", b"\xff", b"\x01"])) + body[at + 1 :]
    try:
        decoded = decode(first, body)
    except PacketViolation:
        return
    assert split(encode(decoded)) == (first, body)


CONNECT_HEAD = b"\x00\x04MQTT\x04"


@pytest.mark.parametrize(
    ("first", "body", "reason"),
    [
        (0x00, b"", "malformed_packet"),
        (0xF0, b"", "malformed_packet"),
        (0x11, CONNECT_HEAD + b"\x02\0\0\0\x01a", "reserved_flags"),
        (0x10, CONNECT_HEAD + b"\x03\0\0\0\x01a", "reserved_flags"),
        (0x10, CONNECT_HEAD + b"\x0a\0\0\0\x01a", "reserved_flags"),
        (0x10, CONNECT_HEAD + b"\x22\0\0\0\x01a", "reserved_flags"),
        (0x10, CONNECT_HEAD + b"\x42\0\0\0\x01a\0\x01p", "reserved_flags"),
        (0x10, CONNECT_HEAD + b"\x1e\0\0\0\x01a\0\x01w\0\0", "invalid_qos"),
        (0x10, CONNECT_HEAD + b"\x02\0\0\0\x01ab", "malformed_packet"),
        (0x10, CONNECT_HEAD + b"\x02\0", "malformed_packet"),
        (0x10, b"\x00\x04MQTT", "malformed_packet"),
        (0x10, b"\x00\x04MQTX\x04\x02\0\0\0\x01a", "protocol_name"),
        (0x10, b"\x00\x04MQTT\x06\x02\0\0\0\0\x01a", "protocol_level"),
        (0x10, b"\x00\x06MQIsdp\x03\x02\0\0\0\x01a", "protocol_level"),
        (0x36, b"\0\x01a\0\x01", "invalid_qos"),
        (0x38, b"\0\x01a", "reserved_flags"),
        (0x32, b"\0\x01a\0\0", "packet_id"),
        (0x32, b"\0\x01a\0", "malformed_packet"),
        (0x30, b"\0\x02a", "malformed_packet"),
        (0x40, b"\0\x01\0", "remaining_length"),
        (0x60, b"\0\x01", "reserved_flags"),
        (0x62, b"\0\0", "packet_id"),
        (0x80, b"\0\x01\0\x01a\0", "reserved_flags"),
        (0x82, b"\0\x01", "malformed_packet"),
        (0x82, b"\0\0\0\x01a\0", "packet_id"),
        (0x82, b"\0\x01\0\x01a", "malformed_packet"),
        (0x82, b"\0\x01\0\x01a\x03", "invalid_qos"),
        (0x90, b"\0\x01", "malformed_packet"),
        (0x90, b"\0\x01\x03", "malformed_packet"),
        (0xA0, b"\0\x01\0\x01a", "reserved_flags"),
        (0xA2, b"\0\x01", "malformed_packet"),
        (0x20, b"\x02\0", "malformed_packet"),
        (0xC0, b"x", "remaining_length"),
        (0xE1, b"", "reserved_flags"),
    ],
)
def test_refusals(first: int, body: bytes, reason: str) -> None:
    """Each broken rule has its reason."""
    with pytest.raises(PacketViolation) as refused:
        decode(first, body)
    assert refused.value.reason == reason


def test_later_levels_are_refused_in_the_layout_of_level_5() -> None:
    """A later level of MQTT is answered in the layout of level 5, everything else in that of 3.1.1."""
    for body, is_later in [(b"\0\x04MQTT\x06", True), (b"\0\x04MQTT\x03", False), (b"\0\x06MQIsdp\x05", False)]:
        with pytest.raises(UnsupportedLevel) as refused:
            decode(0x10, body)
        assert refused.value.is_later is is_later
    assert [level_of(b"\0\x04MQTT\x05"), level_of(b"\0\x04MQTT\x04")] == [5, 4]


def test_split_takes_exactly_one_packet() -> None:
    """Half a packet and one and a half are refused."""
    for data in (b"\xc0", b"\xc0\x00\xc0", b"\x30\x05\0"):
        with pytest.raises(PacketViolation):
            split(data)


@pytest.mark.parametrize("packet", EVERYTHING, ids=lambda packet: type(packet).__name__)
def test_round_trip_at_level_5(packet: packets.Packet) -> None:
    """What was encoded is decoded, with all its fields."""
    assert decode(*split(encode(packet, 5)), 5) == packet


@given(PUBLISHES5)
def test_any_publish_round_trips(publish: packets.Publish) -> None:
    """Properties, alias and payload in every combination."""
    assert decode(*split(encode(publish, 5)), 5) == publish


@pytest.mark.parametrize("packet", EVERYTHING, ids=lambda packet: type(packet).__name__)
def test_a_packet_cut_anywhere(packet: packets.Packet) -> None:
    """A body that ends too early is refused or is another valid packet; no other exception is raised."""
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
    """One wrong byte anywhere gives a violation or a packet that can be encoded again."""
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
        (0x40, b"\0\x01\x01", "protocol_error"),  # no such reason code in PUBACK
        (0x40, b"\0\x01\0\0x", "malformed_packet"),
        (0x62, b"\0\x01\x10", "protocol_error"),
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
        (0xE0, b"\x01", "protocol_error"),
        (0xF0, b"\x87", "protocol_error"),
        (0xF1, b"", "reserved_flags"),
        (0x10, b"\0\x04MQTT\x05\x02\0\0\x03\x16\0\0\0\x01a", "protocol_error"),  # data without a method
        (0x10, b"\0\x04MQTT\x05\x06\0\0\0\0\x01a\0", "malformed_packet"),  # will properties and nothing else
    ],
)
def test_refusals_at_level_5(first: int, body: bytes, reason: str) -> None:
    """Each broken rule has its reason."""
    with pytest.raises(PacketViolation) as refused:
        decode(first, body, 5)
    assert refused.value.reason == reason
