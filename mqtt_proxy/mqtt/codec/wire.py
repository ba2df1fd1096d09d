"""The primitives of the MQTT wire: fixed header, remaining length, UTF-8 strings, binary fields, packet ids.

    fixed header   u8 type << 4 | flags, remaining length in 1..4 bytes of 7 bits, low first, high bit = one more
    follows string         u16 length, that many bytes of UTF-8 without U+0000 and without surrogates
    binary         u16 length, that many bytes

Invariant: a reader never reads beyond the body it was given, and for any contents it raises nothing but
`PacketViolation`.
"""

from __future__ import annotations

from mqtt_proxy.mqtt.codec.limits import REMAINING_LENGTH_MAX
from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation, Reason
from remoting.protocol.errors import LocalMisuse

STRING_BYTES_MAX = 65_535
"""Longest string or binary field: its length is a u16."""


def fixed_header(data: bytes, position: int, end: int) -> tuple[int, int] | None:
    """Body start and body length of the packet that begins at `position`; None while the header is not complete.

    Raises PacketViolation when the remaining length does not end within four bytes.
    """
    length = 0
    cursor = position + 1
    for shift in (0, 7, 14, 21):
        if cursor >= end:
            return None
        byte = data[cursor]
        cursor += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return cursor, length
    raise PacketViolation(Reason.LENGTH, "remaining length does not end within four bytes [2.2.3]")


def encode_length(length: int) -> bytes:
    """The remaining length on the wire, shortest form. LocalMisuse beyond 268,435,455."""
    if length < 0x80:
        return bytes((length,))
    if length > REMAINING_LENGTH_MAX:
        raise LocalMisuse(f"a packet of {length} bytes cannot be encoded, the most is {REMAINING_LENGTH_MAX}")
    encoded = bytearray()
    while length >= 0x80:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def encode_binary(value: bytes) -> bytes:
    """A length-prefixed field. LocalMisuse beyond 65,535 bytes."""
    if len(value) > STRING_BYTES_MAX:
        raise LocalMisuse(f"a field of {len(value)} bytes cannot be encoded, the most is {STRING_BYTES_MAX}")
    return len(value).to_bytes(2, "big") + value


def encode_string(value: str) -> bytes:
    """A length-prefixed UTF-8 string."""
    return encode_binary(value.encode())


def check_text(value: bytes, what: str) -> str:
    """The text of UTF-8 bytes; PacketViolation on ill-formed UTF-8, surrogates [MQTT-1.5.3-1] and U+0000
    [MQTT-1.5.3-2].
    """
    if 0 in value:
        raise PacketViolation(Reason.STRING, f"{what} contains U+0000 [MQTT-1.5.3-2]")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise PacketViolation(Reason.STRING, f"{what} is not UTF-8: {error.reason} [MQTT-1.5.3-1]") from None


def read_binary(body: bytes, position: int, what: str) -> tuple[bytes, int]:
    """The binary field at `position` and the position after it."""
    start = position + 2
    stop = start + int.from_bytes(body[position:start], "big")
    if start > len(body) or stop > len(body):
        raise PacketViolation(Reason.MALFORMED, f"{what} runs beyond the end of its packet")
    return body[start:stop], stop


def read_string(body: bytes, position: int, what: str) -> tuple[str, int]:
    """The UTF-8 string at `position` and the position after it."""
    value, stop = read_binary(body, position, what)
    return check_text(value, what), stop


def read_packet_id(body: bytes, position: int, what: str) -> int:
    """The packet id at `position`; PacketViolation when it is missing or 0 [MQTT-2.3.1-1]."""
    if position + 2 > len(body):
        raise PacketViolation(Reason.MALFORMED, f"{what} ends before its packet id")
    packet_id = body[position] << 8 | body[position + 1]
    if packet_id == 0:
        raise PacketViolation(Reason.PACKET_ID, f"{what} with packet id 0 [MQTT-2.3.1-1]")
    return packet_id
