"""MQTT on the wire as the two standards define it: the scripts' own encoder and reader, without product code.

An error that the product makes alike in its encoder and in its decoder would be invisible to scripts that used either.
Every function here is one figure or table of the standard; `test_wire.py` compares them with the standard's examples.
Section numbers are those of 3.1.1 / 5.0. Thread rule: pure functions.
"""

from __future__ import annotations

from typing import NamedTuple

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 0x10, 0x20, 0x30, 0x40, 0x50, 0x62, 0x70
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP = 0x82, 0x90, 0xA2, 0xB0, 0xC0, 0xD0
DISCONNECT, AUTH = 0xE0, 0xF0
"""First bytes: the type in the high half, in the low half the flags that tables 2.2 / 2-2 prescribe."""

ACKNOWLEDGEMENTS = (PUBACK, PUBREC, PUBREL, PUBCOMP)

BYTE, U16, U32, VARIABLE, TEXT, BINARY, PAIR = "byte", "u16", "u32", "variable", "text", "binary", "pair"

PROPERTIES: dict[str, tuple[int, str]] = {
    "format": (0x01, BYTE),
    "expiry": (0x02, U32),
    "content_type": (0x03, TEXT),
    "response_topic": (0x08, TEXT),
    "correlation": (0x09, BINARY),
    "sub_id": (0x0B, VARIABLE),
    "session_expiry": (0x11, U32),
    "assigned_id": (0x12, TEXT),
    "keep_alive_s": (0x13, U16),
    "auth_method": (0x15, TEXT),
    "auth_data": (0x16, BINARY),
    "want_problem": (0x17, BYTE),
    "will_delay": (0x18, U32),
    "want_response": (0x19, BYTE),
    "response_info": (0x1A, TEXT),
    "server_ref": (0x1C, TEXT),
    "reason_string": (0x1F, TEXT),
    "receive_max": (0x21, U16),
    "alias_max": (0x22, U16),
    "alias": (0x23, U16),
    "max_qos": (0x24, BYTE),
    "retain_available": (0x25, BYTE),
    "user": (0x26, PAIR),
    "max_packet": (0x27, U32),
    "wildcard_available": (0x28, BYTE),
    "sub_id_available": (0x29, BYTE),
    "shared_available": (0x2A, BYTE),
}
"""Table 2-4: the name in scripts, the identifier, the type."""

_TYPES = dict(PROPERTIES.values())
_SIZES = {BYTE: 1, U16: 2, U32: 4}


def number(value: int, size: int = 2) -> bytes:
    """An integer, most significant byte first [1.5.2, 1.5.3]."""
    return value.to_bytes(size, "big")


def string(data: bytes | str) -> bytes:
    """A string or binary data after its length in two bytes [1.5.3 / 1.5.4, 1.5.6]."""
    raw = data.encode() if isinstance(data, str) else data
    return number(len(raw)) + raw


def variable(value: int) -> bytes:
    """A variable byte integer: seven bits a byte, the lowest first, bit 7 means that more follow [2.2.3 / 1.5.5]."""
    assert 0 <= value <= 268_435_455, value
    encoded = b""
    while value > 127:
        encoded += bytes((value % 128 + 128,))
        value //= 128
    return encoded + bytes((value,))


def packet(first: int, *parts: bytes) -> bytes:
    """A fixed header in front of the variable header and the payload [2.2 / 2.1]."""
    body = b"".join(parts)
    return bytes((first,)) + variable(len(body)) + body


def property_value(kind: str, word: str) -> bytes:
    """The value of a property as a script writes it: binary in hex, a pair as `name:value` [2.2.2.2]."""
    if kind in _SIZES:
        return number(int(word, 0), _SIZES[kind])
    if kind == VARIABLE:
        return variable(int(word, 0))
    if kind == BINARY:
        return string(bytes.fromhex(word))
    if kind == PAIR:
        name, _, value = word.partition(":")
        return string(name) + string(value)
    return string(word)


def properties(named: list[tuple[str, str]]) -> bytes:
    """The length of the properties and the properties [2.2.2]."""
    rows = [(*PROPERTIES[name], word) for name, word in named]
    encoded = b"".join(variable(identifier) + property_value(kind, word) for identifier, kind, word in rows)
    return variable(len(encoded)) + encoded


def read_variable(data: bytes, at: int) -> tuple[int, int]:
    """A variable byte integer and where it ends; IndexError when it is incomplete [2.2.3 / 1.5.5]."""
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            assert shift == 7 or byte, "a variable byte integer longer than necessary"
            return value, at
        assert shift < 28, "a variable byte integer of more than four bytes"


def whole_packet(data: bytes) -> int:
    """The length of the first packet of `data`; 0 when it is incomplete."""
    try:
        remaining, start = read_variable(data, 1)
    except IndexError:
        return 0
    return start + remaining if len(data) >= start + remaining else 0


class Parts(NamedTuple):
    """The parts of a packet of MQTT 5 from a server, as in the figures of its chapter."""

    first: int
    fields: bytes
    """CONNACK: flags and code. PUBLISH: the topic with its length. PUBACK to PUBCOMP, DISCONNECT, AUTH: the reason."""
    packet_id: int
    properties: list[tuple[int, bytes]]
    """Identifier and the bytes of its value, in order."""
    payload: bytes
    """PUBLISH: the message. SUBACK, UNSUBACK: the codes."""


def take_apart(raw: bytes) -> Parts:
    """The parts of one whole packet of MQTT 5; an AssertionError names what differs from the standard."""
    first = raw[0]
    remaining, at = read_variable(raw, 1)
    body = raw[at:]
    assert len(body) == remaining, "the remaining length is not that of the rest"
    kind = first & 0xF0
    if kind == PUBLISH:
        topic_end = 2 + int.from_bytes(body[:2], "big")
        id_end = topic_end + (2 if first & 0x06 else 0)
        found, payload = _read_properties(body, id_end)
        return Parts(first, body[:topic_end], int.from_bytes(body[topic_end:id_end], "big"), found, payload)
    if kind in (PINGREQ, PINGRESP):
        return Parts(first, b"", 0, [], body)
    if kind == CONNACK:
        found, payload = _read_properties(body, 2)
        return Parts(first, body[:2], 0, found, payload)
    if kind in (DISCONNECT, AUTH):
        found, payload = _read_properties(body, 1) if len(body) > 1 else ([], b"")
        return Parts(first, body[:1] or b"\0", 0, found, payload)
    packet_id = int.from_bytes(body[:2], "big")
    if kind in (SUBACK, UNSUBACK):
        found, payload = _read_properties(body, 2)
        return Parts(first, b"", packet_id, found, payload)
    assert first in ACKNOWLEDGEMENTS, f"a server does not send packets that begin with {first:#x}"
    found, payload = _read_properties(body, 3) if len(body) > 3 else ([], b"")
    return Parts(first, body[2:3] or b"\0", packet_id, found, payload)


def _read_properties(body: bytes, at: int) -> tuple[list[tuple[int, bytes]], bytes]:
    size, at = read_variable(body, at)
    end = at + size
    assert end <= len(body), "properties longer than their packet"
    found = []
    while at < end:
        identifier, start = read_variable(body, at)
        assert identifier in _TYPES, f"there is no property {identifier:#x}"
        at = _value_end(body, start, _TYPES[identifier])
        found.append((identifier, body[start:at]))
    assert at == end, "a property runs beyond the length of the properties"
    return found, body[end:]


def _value_end(body: bytes, at: int, kind: str) -> int:
    if kind in _SIZES:
        return at + _SIZES[kind]
    if kind == VARIABLE:
        return read_variable(body, at)[1]
    for _ in range(2 if kind == PAIR else 1):
        at += 2 + int.from_bytes(body[at : at + 2], "big")
    return at
