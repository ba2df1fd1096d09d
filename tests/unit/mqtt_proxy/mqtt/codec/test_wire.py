"""The primitives of the wire: lengths, strings, ids, and their limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtt_proxy.mqtt.codec import wire
from mqtt_proxy.mqtt.codec.limits import REMAINING_LENGTH_MAX
from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation
from remoting.protocol.errors import LocalMisuse


@given(st.integers(0, REMAINING_LENGTH_MAX))
def test_remaining_length_round_trip(length: int) -> None:
    """What is encoded is read back from a header that ends exactly there, and not before it is complete."""
    encoded = b"\x30" + wire.encode_length(length)
    assert wire.fixed_header(encoded, 0, len(encoded)) == (len(encoded), length)
    assert all(wire.fixed_header(encoded, 0, end) is None for end in range(1, len(encoded)))


@pytest.mark.parametrize(
    ("length", "size"),
    [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (2_097_151, 3), (2_097_152, 4), (REMAINING_LENGTH_MAX, 4)],
)
def test_remaining_length_sizes(length: int, size: int) -> None:
    """Table 2.4 of the standard."""
    assert len(wire.encode_length(length)) == size


def test_too_long_both_ways() -> None:
    """Five length bytes are malformed; encoding a packet of that size is a mistake of the caller's."""
    with pytest.raises(PacketViolation, match="remaining_length"):
        wire.fixed_header(b"\x30\xff\xff\xff\xff\x01", 0, 6)
    with pytest.raises(LocalMisuse):
        wire.encode_length(REMAINING_LENGTH_MAX + 1)
    with pytest.raises(LocalMisuse):
        wire.encode_binary(bytes(65_536))


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50))
def test_strings_round_trip(text: str) -> None:
    """Any text except U+0000 and surrogates, a leading BOM included."""
    encoded = wire.encode_string(text)
    assert wire.read_string(encoded + b"rest", 0, "it") == (text, len(encoded))


@pytest.mark.parametrize("raw", [b"a\0b", b"\xed\xa0\x80", b"\xff", b"\xc3", b"\xc0\x80"])
def test_ill_formed_text(raw: bytes) -> None:
    """U+0000, a surrogate, a wrong byte, a cut sequence, an overlong form."""
    with pytest.raises(PacketViolation, match="malformed_string"):
        wire.check_text(raw, "it")


@pytest.mark.parametrize("body", [b"", b"\0", b"\0\x01", b"\0\x05abcd"])
def test_fields_beyond_the_packet(body: bytes) -> None:
    """A field longer than its packet is malformed."""
    with pytest.raises(PacketViolation, match="malformed_packet"):
        wire.read_binary(body, 0, "it")


def test_packet_ids() -> None:
    """0 is no packet id, and neither is half of one."""
    assert wire.read_packet_id(b"\x01\x02", 0, "it") == 258
    with pytest.raises(PacketViolation, match="packet_id"):
        wire.read_packet_id(b"\0\0", 0, "it")
    with pytest.raises(PacketViolation, match="malformed_packet"):
        wire.read_packet_id(b"\x01", 0, "it")
