"""The property table, and reading what it describes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.mqtt.codec import packets, properties
from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation
from mqtt_proxy.mqtt.codec.wire import encode_length

ALL_PACKETS = sorted({packet for row in properties.TABLE.values() for packet in row.packets})


def test_table_2_4() -> None:
    """27 properties; only user properties repeat, and subscription identifiers in PUBLISH."""
    assert len(properties.TABLE) == 27
    repeating = {identifier for identifier, row in properties.TABLE.items() if row.repeats}
    assert repeating == {properties.USER, properties.SUBSCRIPTION_ID}
    names = [value for name, value in vars(properties).items() if name.isupper() and isinstance(value, int)]
    assert sorted(set(names) - {properties.WILL}) == sorted(properties.TABLE)
    assert packets.PINGREQ not in ALL_PACKETS


SAMPLES = {
    properties.USER: [(b"k", b"1"), (b"k", b"\xc3\xa4")],
    properties.CORRELATION_DATA: b"\x00\xff",
    properties.AUTH_DATA: b"\x00",
    properties.SUBSCRIPTION_ID: 268_435_455,
}


def sample(identifier: int, packet_type: int) -> object:
    """A value that fits the property's type."""
    row = properties.TABLE[identifier]
    value = SAMPLES.get(identifier)
    if value is None:
        try:
            row.encode(1)
            value = 1
        except TypeError:
            value = b"text"
    return [value, value] if packet_type in row.repeats and not isinstance(value, list) else value


@pytest.mark.parametrize("packet_type", ALL_PACKETS)
def test_each_property_in_its_packets_only(packet_type: int) -> None:
    """A property that belongs there is read back; another is malformed; a repeated one is a protocol error."""
    for identifier, row in properties.TABLE.items():
        block = properties.encode({identifier: sample(identifier, packet_type)})
        if packet_type not in row.packets:
            with pytest.raises(PacketViolation, match="malformed_packet"):
                properties.read(block, 0, packet_type)
            continue
        found, position = properties.read(block, 0, packet_type)
        assert position == len(block)
        assert properties.encode(found) == block
        if packet_type not in row.repeats:
            twice = block[1:] * 2
            with pytest.raises(PacketViolation, match="protocol_error"):
                properties.read(bytes((len(twice),)) + twice, 0, packet_type)


@pytest.mark.parametrize("packet_type", ALL_PACKETS)
def test_cut_anywhere_is_malformed(packet_type: int) -> None:
    """A block that ends too early, inside a value or after its identifier."""
    fitting = {i: sample(i, packet_type) for i, row in properties.TABLE.items() if packet_type in row.packets}
    block = properties.encode(fitting)
    start = len(block) - properties.read_length(block, 0, "")[0]
    for stop in range(len(block)):
        with pytest.raises(PacketViolation, match="malformed"):
            properties.read(block[:stop], 0, packet_type)
    for length in range(1, len(block) - start):
        try:
            found, _ = properties.read(properties.encode_length(length) + block[start:], 0, packet_type)
        except PacketViolation:
            continue
        assert found != fitting


@pytest.mark.parametrize(
    "block",
    [
        b"\x02\x17\x02",  # request problem information 2
        b"\x03\x21\x00\x00",  # receive maximum 0
        b"\x05\x27\x00\x00\x00\x00",  # maximum packet size 0
    ],
)
def test_invalid_values(block: bytes) -> None:
    """Protocol errors, not malformed packets."""
    with pytest.raises(PacketViolation, match="protocol_error"):
        properties.read(block, 0, packets.CONNECT)


@pytest.mark.parametrize("data", [b"\x80\x00", b"\xff\xff\xff\xff\x01", b"\x80", b""])
def test_invalid_lengths(data: bytes) -> None:
    """Longer than necessary, longer than four bytes, cut."""
    with pytest.raises(PacketViolation, match="malformed"):
        properties.read_length(data, 0, "length")


@given(st.binary(max_size=40), st.sampled_from(ALL_PACKETS))
def test_any_bytes_are_read_or_refused(data: bytes, packet_type: int) -> None:
    """Only a violation is raised, and what is read can be written."""
    try:
        found, position = properties.read(data, 0, packet_type)
    except PacketViolation:
        return
    assert properties.read(properties.encode(found), 0, packet_type)[0] == found
    assert position <= len(data)


def test_the_number_of_properties_is_bounded() -> None:
    """A packet of nothing but user properties costs bounded time, also before a client was admitted."""
    pair = b"\x26\x00\x00\x00\x00"
    for packet_type in (packets.CONNECT, packets.SUBSCRIBE, packets.PUBLISH):
        block = pair * packets.PROPERTY_REPEATS_MAX
        found, _ = properties.read(encode_length(len(block)) + block, 0, packet_type)
        assert len(found[properties.USER]) == packets.PROPERTY_REPEATS_MAX
        block += pair
        with pytest.raises(PacketViolation) as refused:
            properties.read(encode_length(len(block)) + block, 0, packet_type)
        assert refused.value.reason == "user_properties"
