"""The properties of MQTT 5: their names, types, allowed packets, and layout on the wire.

    properties   variable byte integer: length in bytes | (identifier, value)*
    value        byte, u16, u32, variable byte integer, string, binary, or a pair of strings: a row of `TABLE`

Invariant: `read` accepts exactly what table 2-4 of the standard allows in that packet, and `encode` of what `read`
returned is read as the same. A property comes once [Protocol Error otherwise] unless its row allows repeats;
one that its packet does not know is a malformed packet [2.2.2.2]. Thread rule: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.reason_codes import PacketViolation, Reason
from mqtt_proxy.mqtt.codec.wire import check_text, encode_binary, encode_length, read_binary

Properties = dict[int, Any]
"""Identifier -> value; of a property that may repeat, the list of its values in order."""

PAYLOAD_FORMAT = 0x01
MESSAGE_EXPIRY = 0x02
CONTENT_TYPE = 0x03
RESPONSE_TOPIC = 0x08
CORRELATION_DATA = 0x09
SUBSCRIPTION_ID = 0x0B
SESSION_EXPIRY = 0x11
ASSIGNED_CLIENT_ID = 0x12
SERVER_KEEP_ALIVE = 0x13
AUTH_METHOD = 0x15
AUTH_DATA = 0x16
REQUEST_PROBLEM_INFORMATION = 0x17
WILL_DELAY = 0x18
REQUEST_RESPONSE_INFORMATION = 0x19
RESPONSE_INFORMATION = 0x1A
SERVER_REFERENCE = 0x1C
REASON_STRING = 0x1F
RECEIVE_MAXIMUM = 0x21
TOPIC_ALIAS_MAXIMUM = 0x22
TOPIC_ALIAS = 0x23
MAXIMUM_QOS = 0x24
RETAIN_AVAILABLE = 0x25
USER = 0x26
MAXIMUM_PACKET_SIZE = 0x27
WILDCARD_AVAILABLE = 0x28
SUBSCRIPTION_ID_AVAILABLE = 0x29
SHARED_AVAILABLE = 0x2A

WILL = 0
"""The packet type under which the properties of a will are looked up: they stand in CONNECT, in a block of their
own."""

_ACKNOWLEDGEMENTS = frozenset({packets.PUBACK, packets.PUBREC, packets.PUBREL, packets.PUBCOMP})
_MESSAGES = frozenset({packets.PUBLISH, WILL})
_CONNECT = frozenset({packets.CONNECT})
_CONNACK = frozenset({packets.CONNACK})
_EVERYWHERE = (
    _ACKNOWLEDGEMENTS
    | _MESSAGES
    | _CONNECT
    | _CONNACK
    | {packets.SUBSCRIBE, packets.SUBACK, packets.UNSUBSCRIBE, packets.UNSUBACK, packets.DISCONNECT, packets.AUTH}
)


def _read_fixed(size: int) -> Callable[[bytes, int, str], tuple[int, int]]:
    def read_it(body: bytes, position: int, what: str) -> tuple[int, int]:
        if position + size > len(body):
            raise PacketViolation(Reason.MALFORMED, f"{what} runs beyond the end of its packet")
        return int.from_bytes(body[position : position + size], "big"), position + size

    return read_it


def _read_flag(body: bytes, position: int, what: str) -> tuple[int, int]:
    value, stop = _read_fixed(1)(body, position, what)
    if value > 1:
        raise PacketViolation(Reason.PROTOCOL, f"{what} is {value}, it must be 0 or 1")
    return value, stop


def _at_least_one(
    reader: Callable[[bytes, int, str], tuple[int, int]],
) -> Callable[[bytes, int, str], tuple[int, int]]:
    def read_it(body: bytes, position: int, what: str) -> tuple[int, int]:
        value, stop = reader(body, position, what)
        if value == 0:
            raise PacketViolation(Reason.PROTOCOL, f"{what} is 0")
        return value, stop

    return read_it


def read_length(body: bytes, position: int, what: str) -> tuple[int, int]:
    """The variable byte integer at `position` and the position after it; only the shortest form [MQTT-1.5.5-1]."""
    value = shift = 0
    for cursor in range(position, min(position + 4, len(body))):
        byte = body[cursor]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if byte == 0 and cursor > position:
                raise PacketViolation(Reason.MALFORMED, f"{what} is longer than it need be [MQTT-1.5.5-1]")
            return value, cursor + 1
    raise PacketViolation(Reason.MALFORMED, f"{what} does not end")


def read_utf8(body: bytes, position: int, what: str) -> tuple[bytes, int]:
    """The UTF-8 string at `position`, checked but left as bytes."""
    value, stop = read_binary(body, position, what)
    check_text(value, what)
    return value, stop


def _read_pair(body: bytes, position: int, what: str) -> tuple[tuple[bytes, bytes], int]:
    key, position = read_utf8(body, position, what)
    value, position = read_utf8(body, position, what)
    return (key, value), position


class Row(NamedTuple):
    """One property as the standard defines it."""

    name: str
    read: Callable[[bytes, int, str], tuple[Any, int]]
    encode: Callable[[Any], bytes]
    packets: frozenset[int]
    repeats: frozenset[int] = frozenset()
    """The packets it may stand in more than once."""


def _fixed(size: int) -> Callable[[int], bytes]:
    return lambda value: value.to_bytes(size, "big")


_U16, _U32, _FLAG = _read_fixed(2), _read_fixed(4), _read_flag

TABLE: dict[int, Row] = {
    PAYLOAD_FORMAT: Row("Payload Format Indicator", _FLAG, _fixed(1), _MESSAGES),
    MESSAGE_EXPIRY: Row("Message Expiry Interval", _U32, _fixed(4), _MESSAGES),
    CONTENT_TYPE: Row("Content Type", read_utf8, encode_binary, _MESSAGES),
    RESPONSE_TOPIC: Row("Response Topic", read_utf8, encode_binary, _MESSAGES),
    CORRELATION_DATA: Row("Correlation Data", read_binary, encode_binary, _MESSAGES),
    SUBSCRIPTION_ID: Row(
        "Subscription Identifier",
        _at_least_one(read_length),
        encode_length,
        frozenset({packets.PUBLISH, packets.SUBSCRIBE}),
        frozenset({packets.PUBLISH}),
    ),
    SESSION_EXPIRY: Row(
        "Session Expiry Interval", _U32, _fixed(4), frozenset({packets.CONNECT, packets.CONNACK, packets.DISCONNECT})
    ),
    ASSIGNED_CLIENT_ID: Row("Assigned Client Identifier", read_utf8, encode_binary, _CONNACK),
    SERVER_KEEP_ALIVE: Row("Server Keep Alive", _U16, _fixed(2), _CONNACK),
    AUTH_METHOD: Row("Authentication Method", read_utf8, encode_binary, _CONNECT | _CONNACK | {packets.AUTH}),
    AUTH_DATA: Row("Authentication Data", read_binary, encode_binary, _CONNECT | _CONNACK | {packets.AUTH}),
    REQUEST_PROBLEM_INFORMATION: Row("Request Problem Information", _FLAG, _fixed(1), _CONNECT),
    WILL_DELAY: Row("Will Delay Interval", _U32, _fixed(4), frozenset({WILL})),
    REQUEST_RESPONSE_INFORMATION: Row("Request Response Information", _FLAG, _fixed(1), _CONNECT),
    RESPONSE_INFORMATION: Row("Response Information", read_utf8, encode_binary, _CONNACK),
    SERVER_REFERENCE: Row("Server Reference", read_utf8, encode_binary, _CONNACK | {packets.DISCONNECT}),
    REASON_STRING: Row(
        "Reason String",
        read_utf8,
        encode_binary,
        _ACKNOWLEDGEMENTS | _CONNACK | {packets.SUBACK, packets.UNSUBACK, packets.DISCONNECT, packets.AUTH},
    ),
    RECEIVE_MAXIMUM: Row("Receive Maximum", _at_least_one(_U16), _fixed(2), _CONNECT | _CONNACK),
    TOPIC_ALIAS_MAXIMUM: Row("Topic Alias Maximum", _U16, _fixed(2), _CONNECT | _CONNACK),
    TOPIC_ALIAS: Row("Topic Alias", _U16, _fixed(2), frozenset({packets.PUBLISH})),
    MAXIMUM_QOS: Row("Maximum QoS", _FLAG, _fixed(1), _CONNACK),
    RETAIN_AVAILABLE: Row("Retain Available", _FLAG, _fixed(1), _CONNACK),
    USER: Row(
        "User Property",
        _read_pair,
        lambda pair: encode_binary(pair[0]) + encode_binary(pair[1]),
        _EVERYWHERE,
        _EVERYWHERE,
    ),
    MAXIMUM_PACKET_SIZE: Row("Maximum Packet Size", _at_least_one(_U32), _fixed(4), _CONNECT | _CONNACK),
    WILDCARD_AVAILABLE: Row("Wildcard Subscription Available", _FLAG, _fixed(1), _CONNACK),
    SUBSCRIPTION_ID_AVAILABLE: Row("Subscription Identifiers Available", _FLAG, _fixed(1), _CONNACK),
    SHARED_AVAILABLE: Row("Shared Subscription Available", _FLAG, _fixed(1), _CONNACK),
}
"""Table 2-4 of the standard."""


def read(body: bytes, position: int, packet_type: int) -> tuple[Properties, int]:
    """The properties at `position` of a packet of this type, and the position after them. Raises PacketViolation."""
    length, position = read_length(body, position, "property length")
    stop = position + length
    found: Properties = {}
    if not length:
        return found, stop
    if stop > len(body):
        raise PacketViolation(Reason.MALFORMED, f"properties of {length} bytes run beyond the end of their packet")
    block = body[:stop]
    while position < stop:
        identifier = block[position]
        row = TABLE.get(identifier)
        if row is None or packet_type not in row.packets:
            raise PacketViolation(Reason.MALFORMED, f"property {identifier:#04x} does not belong in this packet")
        value, position = row.read(block, position + 1, row.name)
        if packet_type in row.repeats:
            values = found.setdefault(identifier, [])
            values.append(value)
            if len(values) > packets.PROPERTY_REPEATS_MAX:
                raise PacketViolation(
                    Reason.USER_PROPERTIES, f"{row.name} more than {packets.PROPERTY_REPEATS_MAX} times"
                )
        elif identifier in found:
            raise PacketViolation(Reason.PROTOCOL, f"{row.name} stands in its packet twice")
        else:
            found[identifier] = value
    return found, stop


def encode(properties: Mapping[int, Any] | None) -> bytes:
    """Property length and properties, in the order of the mapping; a list stands for a property that repeats."""
    if not properties:
        return b"\x00"
    parts: list[bytes] = []
    for identifier, value in properties.items():
        row = TABLE[identifier]
        head = bytes((identifier,))
        for one in value if isinstance(value, list) else (value,):
            parts += (head, row.encode(one))
    block = b"".join(parts)
    return encode_length(len(block)) + block
