"""Packets to bytes: one function per packet that carries anything, constants for those that do not.

Invariant: an encoded packet decodes to an equal packet at its level; values that the wire cannot carry are LocalMisuse,
not corrupt bytes. In MQTT 5 (names that end in 5) a reason code of 0 without properties is left out where the standard
allows it, so that plain acknowledgements are the four bytes of 3.1.1. `publish_head` and `acknowledgements` are the hot
ones: a fan-out makes one head for all its receivers, a batch one pack call. Thread rule: pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.packets import BRIDGE_BIT, LEVEL_3, LEVEL_5, Packet
from mqtt_proxy.mqtt.codec.properties import Properties
from mqtt_proxy.mqtt.codec.properties import encode as encode_properties
from mqtt_proxy.mqtt.codec.wire import encode_binary, encode_length, encode_string
from remoting.protocol.records.properties import MessageProperties


def publish_properties(
    properties: MessageProperties | None,
    *,
    expiry_left_s: int | None = None,
    alias: int = 0,
    subscription_ids: Sequence[int] = (),
) -> bytes:
    """Property length and properties of a PUBLISH; `expiry_left_s` takes the place of the message's own interval."""
    if properties is None and not alias and not subscription_ids and expiry_left_s is None:
        return b"\x00"
    found = _message(properties, expiry_left_s) if properties is not None else {}
    if properties is None and expiry_left_s is not None:
        found[props.MESSAGE_EXPIRY] = expiry_left_s
    if alias:
        found[props.TOPIC_ALIAS] = alias
    if subscription_ids:
        found[props.SUBSCRIPTION_ID] = list(subscription_ids)
    return encode_properties(found)


def _message(properties: MessageProperties, expiry_left_s: int | None) -> Properties:
    values = (
        (props.PAYLOAD_FORMAT, properties.payload_format),
        (props.MESSAGE_EXPIRY, properties.expiry_s if expiry_left_s is None else expiry_left_s),
        (props.CONTENT_TYPE, properties.content_type),
        (props.RESPONSE_TOPIC, properties.response_topic),
        (props.CORRELATION_DATA, properties.correlation_data),
        (props.USER, properties.user or None),
    )
    return {identifier: value for identifier, value in values if value is not None}


def reason_properties(reason_string: str, user: Sequence[tuple[bytes, bytes]] = ()) -> Properties:
    """The two properties that explain an answer in words."""
    found: Properties = {}
    if reason_string:
        found[props.REASON_STRING] = reason_string.encode()
    if user:
        found[props.USER] = list(user)
    return found


def _packet(first: int, body: bytes) -> bytes:
    """A whole packet: fixed header and these parts."""
    return bytes((first,)) + encode_length(len(body)) + body


def acknowledgement5(first: int, packet_id: int, reason: int, properties: Properties | None = None) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP, by its first byte."""
    return _packet(first, packet_id.to_bytes(2, "big") + _optional(reason, properties))


def connack5(session_present: bool, code: int, properties: Properties | None = None) -> bytes:
    """The bytes of a CONNACK of MQTT 5."""
    return _packet(0x20, bytes((session_present, code)) + encode_properties(properties))


def suback5(packet_id: int, codes: Sequence[int], properties: Properties | None = None) -> bytes:
    """The bytes of a SUBACK of MQTT 5."""
    return _packet(0x90, packet_id.to_bytes(2, "big") + encode_properties(properties) + bytes(codes))


def unsuback5(packet_id: int, codes: Sequence[int], properties: Properties | None = None) -> bytes:
    """The bytes of an UNSUBACK of MQTT 5."""
    return _packet(0xB0, packet_id.to_bytes(2, "big") + encode_properties(properties) + bytes(codes))


def disconnect5(reason: int, properties: Properties | None = None) -> bytes:
    """The bytes of a DISCONNECT of MQTT 5."""
    return _packet(0xE0, _optional(reason, properties))


def auth5(reason: int, properties: Properties | None = None) -> bytes:
    """The bytes of an AUTH of MQTT 5."""
    return _packet(0xF0, _optional(reason, properties))


def _optional(reason: int, properties: Properties | None) -> bytes:
    if properties:
        return bytes((reason,)) + encode_properties(properties)
    return bytes((reason,)) if reason else b""


def _connect5(packet: packets.Connect) -> tuple[int, bytes]:
    will = packet.will
    flags = packet.clean << 1 | (packet.username is not None) << 7 | (packet.password is not None) << 6
    fields = [encode_properties(packet.properties), encode_string(packet.client_id)]
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        found = {} if will.properties is None else _message(will.properties, None)
        if will.delay_s:
            found[props.WILL_DELAY] = will.delay_s
        fields += (encode_properties(found), encode_binary(will.topic), encode_binary(will.payload))
    if packet.username is not None:
        fields.append(encode_string(packet.username))
    if packet.password is not None:
        fields.append(encode_binary(packet.password))
    level = bytes((packets.LEVEL_5 | packets.BRIDGE_BIT * packet.bridge, flags))
    return 0x10, b"\x00\x04MQTT" + level + packet.keep_alive_s.to_bytes(2, "big") + b"".join(fields)


def _publish5(packet: packets.Publish) -> tuple[int, bytes]:
    first = 0x30 | packet.dup << 3 | packet.qos << 1 | packet.retain
    packet_id = packet.packet_id.to_bytes(2, "big") if packet.qos else b""
    block = publish_properties(packet.properties, alias=packet.topic_alias, subscription_ids=packet.subscription_ids)
    return first, encode_binary(packet.topic) + packet_id + block + packet.payload


def _acknowledgement5(first: int) -> Callable[[Any], tuple[int, bytes]]:
    return lambda packet: (
        first,
        packet.packet_id.to_bytes(2, "big") + _optional(packet.reason, packet.properties),
    )


def _subscribe5(packet: packets.Subscribe) -> tuple[int, bytes]:
    filters = b"".join(encode_string(topic_filter) + bytes((options,)) for topic_filter, options in packet.filters)
    return 0x82, packet.packet_id.to_bytes(2, "big") + encode_properties(packet.properties) + filters


def _unsubscribe5(packet: packets.Unsubscribe) -> tuple[int, bytes]:
    filters = b"".join(map(encode_string, packet.filters))
    return 0xA2, packet.packet_id.to_bytes(2, "big") + encode_properties(packet.properties) + filters


def _codes5(first: int) -> Callable[[Any], tuple[int, bytes]]:
    return lambda packet: (
        first,
        packet.packet_id.to_bytes(2, "big") + encode_properties(packet.properties) + bytes(packet.codes),
    )


_ENCODERS5: dict[type, Callable[[Any], tuple[int, bytes]]] = {
    packets.Connect: _connect5,
    packets.Connack: lambda packet: (
        0x20,
        bytes((packet.session_present, packet.code)) + encode_properties(packet.properties),
    ),
    packets.Publish: _publish5,
    packets.Puback: _acknowledgement5(0x40),
    packets.Pubrec: _acknowledgement5(0x50),
    packets.Pubrel: _acknowledgement5(0x62),
    packets.Pubcomp: _acknowledgement5(0x70),
    packets.Subscribe: _subscribe5,
    packets.Suback: _codes5(0x90),
    packets.Unsubscribe: _unsubscribe5,
    packets.Unsuback: _codes5(0xB0),
    packets.Disconnect: lambda packet: (0xE0, _optional(packet.reason, packet.properties)),
    packets.Auth: lambda packet: (0xF0, _optional(packet.reason, packet.properties)),
}
"""Packet class -> encoder, for the classes whose layout differs from that of 3.1.1."""


PINGRESP_BYTES = b"\xd0\x00"

PUBACK_WORD = 0x4002_0000
PUBREC_WORD = 0x5002_0000
PUBREL_WORD = 0x6202_0000
PUBCOMP_WORD = 0x7002_0000
"""A whole PUBACK / PUBREC / PUBREL / PUBCOMP as a big-endian u32; the packet id is its low half."""


def encode(packet: Packet, level: int = LEVEL_3) -> bytes:
    """The bytes of `packet` at a protocol level (a CONNECT contains its own), fixed header included. LocalMisuse for
    what cannot be encoded.
    """
    if type(packet) is packets.Connect:
        level = packet.level
    encoder = _ENCODERS5.get(type(packet)) if level == LEVEL_5 else None
    first, body = (encoder or _ENCODERS[type(packet)])(packet)
    return bytes((first,)) + encode_length(len(body)) + body


def publish_head(
    topic: bytes, payload_size_bytes: int, qos: int, retain: bool, dup: bool = False, level: int = LEVEL_3
) -> bytes:
    """Everything of a PUBLISH before its packet id (QoS > 0) or payload (QoS 0); the same for every receiver of a
    level. At level 5 it is a PUBLISH without properties.
    """
    first = 0x30 | dup << 3 | qos << 1 | retain
    if level == LEVEL_5:
        head = bytes((first,)) + encode_length(len(topic) + payload_size_bytes + (5 if qos else 3))
        return head + encode_binary(topic) if qos else head + encode_binary(topic) + b"\x00"
    remaining = len(topic) + payload_size_bytes + (4 if qos else 2)
    if remaining < 0x80:
        return bytes((first, remaining, len(topic) >> 8, len(topic) & 0xFF)) + topic
    return bytes((first,)) + encode_length(remaining) + encode_binary(topic)


def acknowledgements(words: Sequence[int]) -> bytes:
    """The bytes of a run of PUBACKs and PUBRECs given as words (`PUBACK_WORD | packet_id`)."""
    return struct.pack(f">{len(words)}I", *words)


def connack(session_present: bool, code: int) -> bytes:
    """The bytes of a CONNACK of MQTT 3.1.1."""
    return bytes((0x20, 2, session_present, code))


def suback(packet_id: int, codes: Sequence[int]) -> bytes:
    """The bytes of a SUBACK of MQTT 3.1.1."""
    return b"\x90" + encode_length(2 + len(codes)) + packet_id.to_bytes(2, "big") + bytes(codes)


def unsuback(packet_id: int) -> bytes:
    """The bytes of an UNSUBACK of MQTT 3.1.1."""
    return bytes((0xB0, 2, packet_id >> 8, packet_id & 0xFF))


def _connect(packet: packets.Connect) -> tuple[int, bytes]:
    will = packet.will
    flags = packet.clean << 1 | (packet.username is not None) << 7 | (packet.password is not None) << 6
    fields = [encode_string(packet.client_id)]
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        fields += (encode_binary(will.topic), encode_binary(will.payload))
    if packet.username is not None:
        fields.append(encode_string(packet.username))
    if packet.password is not None:
        fields.append(encode_binary(packet.password))
    level = bytes((LEVEL_3 | BRIDGE_BIT * packet.bridge, flags))
    return 0x10, b"\x00\x04MQTT" + level + packet.keep_alive_s.to_bytes(2, "big") + b"".join(fields)


def _publish(packet: packets.Publish) -> tuple[int, bytes]:
    first = 0x30 | packet.dup << 3 | packet.qos << 1 | packet.retain
    packet_id = packet.packet_id.to_bytes(2, "big") if packet.qos else b""
    return first, encode_binary(packet.topic) + packet_id + packet.payload


def _subscribe(packet: packets.Subscribe) -> tuple[int, bytes]:
    filters = b"".join(encode_string(topic_filter) + bytes((qos,)) for topic_filter, qos in packet.filters)
    return 0x82, packet.packet_id.to_bytes(2, "big") + filters


def _unsubscribe(packet: packets.Unsubscribe) -> tuple[int, bytes]:
    return 0xA2, packet.packet_id.to_bytes(2, "big") + b"".join(map(encode_string, packet.filters))


def _only_packet_id(first: int) -> Callable[[Any], tuple[int, bytes]]:
    return lambda packet: (first, packet.packet_id.to_bytes(2, "big"))


def _empty(first: int) -> Callable[[Any], tuple[int, bytes]]:
    return lambda _: (first, b"")


_ENCODERS: dict[type, Callable[[Any], tuple[int, bytes]]] = {
    packets.Connect: _connect,
    packets.Connack: lambda packet: (0x20, bytes((packet.session_present, packet.code))),
    packets.Publish: _publish,
    packets.Puback: _only_packet_id(0x40),
    packets.Pubrec: _only_packet_id(0x50),
    packets.Pubrel: _only_packet_id(0x62),
    packets.Pubcomp: _only_packet_id(0x70),
    packets.Subscribe: _subscribe,
    packets.Suback: lambda packet: (0x90, packet.packet_id.to_bytes(2, "big") + bytes(packet.codes)),
    packets.Unsubscribe: _unsubscribe,
    packets.Unsuback: _only_packet_id(0xB0),
    packets.Pingreq: _empty(0xC0),
    packets.Pingresp: _empty(0xD0),
    packets.Disconnect: _empty(0xE0),
}
