"""Bytes to packets of MQTT 5: what differs from `codec`, one row per packet type.

Invariant: as in `codec`; what a packet of level 5 may look like by itself is decided here and in `properties`, what is
allowed when is the session's table. Reason codes that a packet type does not know are malformed [table 2-6].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.packets import Packet
from mqtt_proxy.mqtt.codec.properties import Properties
from mqtt_proxy.mqtt.codec.reason_codes import REASONS_OF_PACKETS, PacketViolation, Reason
from mqtt_proxy.mqtt.codec.wire import read_binary, read_packet_id, read_string
from remoting.protocol.records.mqtt_properties import MessageProperties

SUBSCRIBE_RESERVED_BITS = 0xC0
RETAIN_HANDLING_SHIFT = 4

_OF_MESSAGE = frozenset(
    {
        props.PAYLOAD_FORMAT,
        props.MESSAGE_EXPIRY,
        props.CONTENT_TYPE,
        props.RESPONSE_TOPIC,
        props.CORRELATION_DATA,
        props.USER,
    }
)
"""The properties that belong to the message and go on to its receivers."""


def message_properties(found: Properties) -> MessageProperties | None:
    """Those properties of a PUBLISH or will that belong to the message; None when there are none."""
    if not found or _OF_MESSAGE.isdisjoint(found):
        return None
    get = found.get
    response_topic = get(props.RESPONSE_TOPIC)
    if response_topic is not None and (not response_topic or b"+" in response_topic or b"#" in response_topic):
        raise PacketViolation(Reason.PROTOCOL, "Response Topic is empty or has wildcards [MQTT-3.3.2-14]")
    return MessageProperties(
        get(props.PAYLOAD_FORMAT),
        get(props.MESSAGE_EXPIRY),
        get(props.CONTENT_TYPE),
        response_topic,
        get(props.CORRELATION_DATA),
        get(props.USER, []),
    )


def connect_fields(body: bytes, position: int, has_will: bool) -> tuple[Properties, str, packets.Will | None, int]:
    """Properties, client id and will (QoS and retain still 0) of a CONNECT, and the position behind them."""
    found, position = props.read(body, position, packets.CONNECT)
    if props.AUTH_DATA in found and props.AUTH_METHOD not in found:
        raise PacketViolation(Reason.PROTOCOL, "Authentication Data without a method [3.1.2.11.10]")
    client_id, position = read_string(body, position, "client id")
    if not has_will:
        return found, client_id, None, position
    of_will, position = props.read(body, position, props.WILL)
    topic, position = read_string(body, position, "will topic")
    payload, position = read_binary(body, position, "will message")
    delay_s = of_will.get(props.WILL_DELAY, 0)
    will = packets.Will(topic.encode(), payload, 0, False, message_properties(of_will), delay_s)
    return found, client_id, will, position


def _reason(packet_type: int, code: int) -> int:
    if code not in REASONS_OF_PACKETS[packet_type]:
        raise PacketViolation(Reason.MALFORMED, f"{packets.PACKET_NAMES[packet_type]} with reason code {code:#x}")
    return code


def _end(body: bytes, position: int, name: str) -> None:
    if position != len(body):
        raise PacketViolation(Reason.MALFORMED, f"{len(body) - position} bytes behind the last field of {name}")


def _connack(_: int, body: bytes) -> Packet:
    if len(body) < 3 or body[0] > 1:
        raise PacketViolation(Reason.MALFORMED, f"CONNACK body {body[:8].hex()}")
    found, position = props.read(body, 2, packets.CONNACK)
    _end(body, position, "CONNACK")
    return packets.Connack(bool(body[0]), _reason(packets.CONNACK, body[1]), found or None)


def _publish(flags: int, body: bytes) -> Packet:
    qos = flags >> 1 & 3
    dup = bool(flags & 8)
    if qos == 3:
        raise PacketViolation(Reason.QOS, "PUBLISH with QoS 3 [MQTT-3.3.1-4]")
    if dup and qos == 0:
        raise PacketViolation(Reason.FLAGS, "PUBLISH with DUP and QoS 0 [MQTT-3.3.1-2]")
    topic, position = read_binary(body, 0, "topic name")
    packet_id = 0
    if qos:
        packet_id = read_packet_id(body, position, "PUBLISH")
        position += 2
    found, position = props.read(body, position, packets.PUBLISH)
    alias = found.get(props.TOPIC_ALIAS, 0)
    if not alias and props.TOPIC_ALIAS in found:
        raise PacketViolation(Reason.TOPIC_ALIAS, "Topic Alias 0 [MQTT-3.3.2-8]")
    return packets.Publish(
        topic,
        body[position:],
        qos,
        bool(flags & 1),
        dup,
        packet_id,
        message_properties(found),
        alias,
        tuple(found.get(props.SUBSCRIPTION_ID, ())),
    )


def _acknowledgement(packet_type: int, make: Callable[..., Packet]) -> Callable[[int, bytes], Packet]:
    """PUBACK and its like: the reason code may be left out, the properties behind it too."""
    name = packets.PACKET_NAMES[packet_type]

    def decode_it(_: int, body: bytes) -> Packet:
        packet_id = read_packet_id(body, 0, name)
        reason, found = _reason_and_properties(packet_type, body, 2, 4)
        return make(packet_id, reason, found)

    return decode_it


def _reason_and_properties(
    packet_type: int, body: bytes, position: int, properties_from_size: int
) -> tuple[int, Properties | None]:
    """The optional end of a packet: reason code, then properties when the body is at least that long."""
    if len(body) == position:
        return 0, None
    reason = _reason(packet_type, body[position])
    if len(body) < properties_from_size:
        return reason, None
    found, position = props.read(body, position + 1, packet_type)
    _end(body, position, packets.PACKET_NAMES[packet_type])
    return reason, found or None


def _last(packet_type: int, make: Callable[..., Packet]) -> Callable[[int, bytes], Packet]:
    """DISCONNECT and AUTH: nothing but a reason code and properties, both of which may be left out."""

    def decode_it(_: int, body: bytes) -> Packet:
        return make(*_reason_and_properties(packet_type, body, 0, 2))

    return decode_it


def _filters(body: bytes, packet_type: int) -> tuple[int, Properties | None, int]:
    packet_id = read_packet_id(body, 0, packets.PACKET_NAMES[packet_type])
    found, position = props.read(body, 2, packet_type)
    if position >= len(body):
        name = packets.PACKET_NAMES[packet_type]
        raise PacketViolation(Reason.PROTOCOL, f"{name} without a topic filter [MQTT-3.8.3-2] [MQTT-3.10.3-2]")
    return packet_id, found or None, position


def _subscribe(_: int, body: bytes) -> Packet:
    packet_id, found, position = _filters(body, packets.SUBSCRIBE)
    filters: list[tuple[str, int]] = []
    while position < len(body):
        topic_filter, position = read_string(body, position, "topic filter")
        if position >= len(body):
            raise PacketViolation(Reason.MALFORMED, "SUBSCRIBE ends before its subscription options")
        filters.append((topic_filter, _options(body[position], topic_filter)))
        position += 1
    return packets.Subscribe(packet_id, filters, found)


def _options(options: int, topic_filter: str) -> int:
    if options & SUBSCRIBE_RESERVED_BITS:
        raise PacketViolation(Reason.MALFORMED, f"subscription options {options:#x} [MQTT-3.8.3-5]")
    if options & 3 == 3 or options >> RETAIN_HANDLING_SHIFT == 3:
        raise PacketViolation(Reason.PROTOCOL, f"subscription options {options:#x}: no such QoS or retain handling")
    if options & 4 and topic_filter.startswith("$share/"):
        raise PacketViolation(Reason.PROTOCOL, "No Local on a shared subscription [MQTT-3.8.3-4]")
    return options


def _unsubscribe(_: int, body: bytes) -> Packet:
    packet_id, found, position = _filters(body, packets.UNSUBSCRIBE)
    filters: list[str] = []
    while position < len(body):
        topic_filter, position = read_string(body, position, "topic filter")
        filters.append(topic_filter)
    return packets.Unsubscribe(packet_id, filters, found)


def _codes(packet_type: int, make: Callable[[int, list[int], Any], Packet]) -> Callable[[int, bytes], Packet]:
    """SUBACK and UNSUBACK."""
    name = packets.PACKET_NAMES[packet_type]

    def decode_it(_: int, body: bytes) -> Packet:
        packet_id = read_packet_id(body, 0, name)
        found, position = props.read(body, 2, packet_type)
        codes = _known(packet_type, body[position:])
        if not codes:
            raise PacketViolation(Reason.MALFORMED, f"{name} without reason codes")
        return make(packet_id, codes, found or None)

    return decode_it


def _known(packet_type: int, codes: Iterable[int]) -> list[int]:
    return [_reason(packet_type, code) for code in codes]


DECODERS: dict[int, Callable[[int, bytes], Packet]] = {
    packets.CONNACK: _connack,
    packets.PUBLISH: _publish,
    packets.PUBACK: _acknowledgement(packets.PUBACK, packets.Puback),
    packets.PUBREC: _acknowledgement(packets.PUBREC, packets.Pubrec),
    packets.PUBREL: _acknowledgement(packets.PUBREL, packets.Pubrel),
    packets.PUBCOMP: _acknowledgement(packets.PUBCOMP, packets.Pubcomp),
    packets.SUBSCRIBE: _subscribe,
    packets.SUBACK: _codes(packets.SUBACK, packets.Suback),
    packets.UNSUBSCRIBE: _unsubscribe,
    packets.UNSUBACK: _codes(packets.UNSUBACK, packets.Unsuback),
    packets.DISCONNECT: _last(packets.DISCONNECT, packets.Disconnect),
    packets.AUTH: _last(packets.AUTH, packets.Auth),
}
"""Packet type -> decoder, for the types whose layout is another one than that of 3.1.1."""
