"""Packets of MQTT 5 to bytes: what differs from `encode`.

Invariant: what is encoded here decodes to an equal packet at level 5; a reason code of 0 without properties is left
out where the standard allows it, so that plain acknowledgements are the four bytes of 3.1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.properties import Properties
from mqtt_proxy.mqtt.codec.properties import encode as encode_properties
from mqtt_proxy.mqtt.codec.wire import encode_binary, encode_length, encode_string
from remoting.protocol.records.mqtt_properties import MessageProperties


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
    """The two properties that explain an answer to a human."""
    found: Properties = {}
    if reason_string:
        found[props.REASON_STRING] = reason_string.encode()
    if user:
        found[props.USER] = list(user)
    return found


def packet(first: int, body: bytes) -> bytes:
    """A whole packet: fixed header and these parts."""
    return bytes((first,)) + encode_length(len(body)) + body


def acknowledgement(first: int, packet_id: int, reason: int, properties: Properties | None = None) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP, as `first` says."""
    return packet(first, packet_id.to_bytes(2, "big") + _optional(reason, properties))


def connack(session_present: bool, code: int, properties: Properties | None = None) -> bytes:
    """The bytes of a CONNACK of MQTT 5."""
    return packet(0x20, bytes((session_present, code)) + encode_properties(properties))


def suback(packet_id: int, codes: Sequence[int], properties: Properties | None = None) -> bytes:
    """The bytes of a SUBACK of MQTT 5."""
    return packet(0x90, packet_id.to_bytes(2, "big") + encode_properties(properties) + bytes(codes))


def unsuback(packet_id: int, codes: Sequence[int], properties: Properties | None = None) -> bytes:
    """The bytes of an UNSUBACK of MQTT 5."""
    return packet(0xB0, packet_id.to_bytes(2, "big") + encode_properties(properties) + bytes(codes))


def disconnect(reason: int, properties: Properties | None = None) -> bytes:
    """The bytes of a DISCONNECT of MQTT 5."""
    return packet(0xE0, _optional(reason, properties))


def auth(reason: int, properties: Properties | None = None) -> bytes:
    """The bytes of an AUTH of MQTT 5."""
    return packet(0xF0, _optional(reason, properties))


def _optional(reason: int, properties: Properties | None) -> bytes:
    if properties:
        return bytes((reason,)) + encode_properties(properties)
    return bytes((reason,)) if reason else b""


def _connect(packet: packets.Connect) -> tuple[int, bytes]:
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


def _publish(packet: packets.Publish) -> tuple[int, bytes]:
    first = 0x30 | packet.dup << 3 | packet.qos << 1 | packet.retain
    packet_id = packet.packet_id.to_bytes(2, "big") if packet.qos else b""
    block = publish_properties(packet.properties, alias=packet.topic_alias, subscription_ids=packet.subscription_ids)
    return first, encode_binary(packet.topic) + packet_id + block + packet.payload


def _acknowledgement(first: int) -> Callable[[Any], tuple[int, bytes]]:
    return lambda packet: (
        first,
        packet.packet_id.to_bytes(2, "big") + _optional(packet.reason, packet.properties),
    )


def _subscribe(packet: packets.Subscribe) -> tuple[int, bytes]:
    filters = b"".join(encode_string(topic_filter) + bytes((options,)) for topic_filter, options in packet.filters)
    return 0x82, packet.packet_id.to_bytes(2, "big") + encode_properties(packet.properties) + filters


def _unsubscribe(packet: packets.Unsubscribe) -> tuple[int, bytes]:
    filters = b"".join(map(encode_string, packet.filters))
    return 0xA2, packet.packet_id.to_bytes(2, "big") + encode_properties(packet.properties) + filters


def _codes(first: int) -> Callable[[Any], tuple[int, bytes]]:
    return lambda packet: (
        first,
        packet.packet_id.to_bytes(2, "big") + encode_properties(packet.properties) + bytes(packet.codes),
    )


ENCODERS: dict[type, Callable[[Any], tuple[int, bytes]]] = {
    packets.Connect: _connect,
    packets.Connack: lambda packet: (
        0x20,
        bytes((packet.session_present, packet.code)) + encode_properties(packet.properties),
    ),
    packets.Publish: _publish,
    packets.Puback: _acknowledgement(0x40),
    packets.Pubrec: _acknowledgement(0x50),
    packets.Pubrel: _acknowledgement(0x62),
    packets.Pubcomp: _acknowledgement(0x70),
    packets.Subscribe: _subscribe,
    packets.Suback: _codes(0x90),
    packets.Unsubscribe: _unsubscribe,
    packets.Unsuback: _codes(0xB0),
    packets.Disconnect: lambda packet: (0xE0, _optional(packet.reason, packet.properties)),
    packets.Auth: lambda packet: (0xF0, _optional(packet.reason, packet.properties)),
}
"""Packet class -> encoder, for the classes whose layout is another one than that of 3.1.1."""
