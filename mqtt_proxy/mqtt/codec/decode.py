"""Bytes to packets: one table row per packet type, and a second table for what MQTT 5 changes.

Invariant: `decode` accepts exactly what MQTT 3.1.1, or MQTT 5 at level 5, allows in a packet by itself (what is allowed
*when* is in the session's table); `decode(*split(encode(packet)), level) == packet`; for any input `decode` returns a
packet or raises `PacketViolation`. A reason code that a packet type does not have is a protocol error [1.2]; a CONNECT
contains its level itself. The hot packets, PUBLISH and PUBACK in runs, are parsed by `scan` instead; this module is
their complete form and the reference for theirs. Thread rule: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.packets import BRIDGE_BIT, LEVEL_3, LEVEL_5, Packet
from mqtt_proxy.mqtt.codec.properties import Properties
from mqtt_proxy.mqtt.codec.reason_codes import REASONS_OF_PACKETS, SUBSCRIBE_FAILURE, PacketViolation, Reason
from mqtt_proxy.mqtt.codec.wire import fixed_header, read_binary, read_packet_id, read_string
from remoting.protocol.records.properties import MessageProperties

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
"""The properties that belong to the message and are passed to its receivers."""


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


def _connect_fields(body: bytes, position: int, has_will: bool) -> tuple[Properties, str, packets.Will | None, int]:
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
        raise PacketViolation(Reason.PROTOCOL, f"{packets.PACKET_NAMES[packet_type]} with reason code {code:#x}")
    return code


def _end5(body: bytes, position: int, name: str) -> None:
    if position != len(body):
        raise PacketViolation(Reason.MALFORMED, f"{len(body) - position} bytes behind the last field of {name}")


def _connack5(_: int, body: bytes) -> Packet:
    if len(body) < 3 or body[0] > 1:
        raise PacketViolation(Reason.MALFORMED, f"CONNACK body {body[:8].hex()}")
    found, position = props.read(body, 2, packets.CONNACK)
    _end5(body, position, "CONNACK")
    return packets.Connack(bool(body[0]), _reason(packets.CONNACK, body[1]), found or None)


def _publish_start(flags: int, body: bytes) -> tuple[int, bool, bytes, int, int]:
    """(QoS, DUP, topic name, packet id or 0, where properties or payload begin): the same in all versions."""
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
    return qos, dup, topic, packet_id, position


def _publish5(flags: int, body: bytes) -> Packet:
    qos, dup, topic, packet_id, position = _publish_start(flags, body)
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


def _acknowledgement5(packet_type: int, make: Callable[..., Packet]) -> Callable[[int, bytes], Packet]:
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
    _end5(body, position, packets.PACKET_NAMES[packet_type])
    return reason, found or None


def _last(packet_type: int, make: Callable[..., Packet]) -> Callable[[int, bytes], Packet]:
    """DISCONNECT and AUTH: nothing but a reason code and properties, both of which may be left out."""

    def decode_it(_: int, body: bytes) -> Packet:
        return make(*_reason_and_properties(packet_type, body, 0, 2))

    return decode_it


def _filters5(body: bytes, packet_type: int) -> tuple[int, Properties | None, int]:
    packet_id = read_packet_id(body, 0, packets.PACKET_NAMES[packet_type])
    found, position = props.read(body, 2, packet_type)
    if position >= len(body):
        name = packets.PACKET_NAMES[packet_type]
        raise PacketViolation(Reason.PROTOCOL, f"{name} without a topic filter [MQTT-3.8.3-2] [MQTT-3.10.3-2]")
    return packet_id, found or None, position


def _subscribe5(_: int, body: bytes) -> Packet:
    packet_id, found, position = _filters5(body, packets.SUBSCRIBE)
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


def _unsubscribe5(_: int, body: bytes) -> Packet:
    packet_id, found, position = _filters5(body, packets.UNSUBSCRIBE)
    filters: list[str] = []
    while position < len(body):
        topic_filter, position = read_string(body, position, "topic filter")
        filters.append(topic_filter)
    return packets.Unsubscribe(packet_id, filters, found)


def _codes5(packet_type: int, make: Callable[[int, list[int], Any], Packet]) -> Callable[[int, bytes], Packet]:
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


_DECODERS5: dict[int, Callable[[int, bytes], Packet]] = {
    packets.CONNACK: _connack5,
    packets.PUBLISH: _publish5,
    packets.PUBACK: _acknowledgement5(packets.PUBACK, packets.Puback),
    packets.PUBREC: _acknowledgement5(packets.PUBREC, packets.Pubrec),
    packets.PUBREL: _acknowledgement5(packets.PUBREL, packets.Pubrel),
    packets.PUBCOMP: _acknowledgement5(packets.PUBCOMP, packets.Pubcomp),
    packets.SUBSCRIBE: _subscribe5,
    packets.SUBACK: _codes5(packets.SUBACK, packets.Suback),
    packets.UNSUBSCRIBE: _unsubscribe5,
    packets.UNSUBACK: _codes5(packets.UNSUBACK, packets.Unsuback),
    packets.DISCONNECT: _last(packets.DISCONNECT, packets.Disconnect),
    packets.AUTH: _last(packets.AUTH, packets.Auth),
}
"""Packet type -> decoder, for the types whose layout differs from that of 3.1.1."""


__all__ = ["PROTOCOL_NAMES", "UnsupportedLevel", "decode", "level_of", "split"]

_LEVELS = {
    (b"MQTT", LEVEL_3): (LEVEL_3, False),
    (b"MQTT", LEVEL_5): (LEVEL_5, False),
    (b"MQTT", BRIDGE_BIT | LEVEL_3): (LEVEL_3, True),
    (b"MQTT", BRIDGE_BIT | LEVEL_5): (LEVEL_5, True),
    (b"MQIsdp", BRIDGE_BIT | 3): (LEVEL_3, True),
}
"""Protocol name and level of CONNECT -> the level to use, and whether it is a bridge.

Mosquitto's bridges begin with the high bit set, MQTT 3.1 included, whose packets are those of 3.1.1; with MQTT 5 they
leave it out and EMQX's (`bridge_mode`) do not."""

PROTOCOL_NAMES = (b"MQTT", b"MQIsdp")
"""Protocol names that get an answer; for any other the connection is closed without one."""

_FLAG_USERNAME, _FLAG_PASSWORD, _FLAG_WILL_RETAIN, _FLAG_WILL, _FLAG_CLEAN = 0x80, 0x40, 0x20, 0x04, 0x02


class UnsupportedLevel(PacketViolation):
    """A CONNECT of another protocol level: well formed as far as it can be read, to be refused by code."""

    def __init__(self, name: bytes, level: int) -> None:
        super().__init__(
            Reason.PROTOCOL_LEVEL,
            f"protocol {name.decode()} level {level}; this server supports 4 (3.1.1) and 5",
        )
        self.level = level
        self.is_later = name == b"MQTT" and LEVEL_5 < level < BRIDGE_BIT


def split(data: bytes) -> tuple[int, bytes]:
    """First byte and body of the one complete packet in `data`; PacketViolation when it is not exactly one."""
    header = fixed_header(data, 0, len(data))
    if header is None or header[0] + header[1] != len(data):
        raise PacketViolation(Reason.LENGTH, "not exactly one packet")
    return data[0], data[header[0] :]


def decode(first: int, body: bytes, level: int = LEVEL_3) -> Packet:
    """The packet with first byte `first` and `body` = the remaining length's bytes. Raises PacketViolation."""
    packet_type = first >> 4
    flags = first & 0x0F
    decoder = _DECODERS5.get(packet_type) if level == LEVEL_5 else None
    decoder = decoder or _DECODERS.get(packet_type)
    if decoder is None:
        raise PacketViolation(Reason.MALFORMED, f"packet type {packet_type} is reserved")
    if packet_type != packets.PUBLISH and flags != _FLAGS.get(packet_type, 0):
        name = packets.PACKET_NAMES[packet_type]
        raise PacketViolation(Reason.FLAGS, f"{name} with fixed header flags {flags:#x} [MQTT-2.2.2-2]")
    return decoder(flags, body)


def _connect(_: int, body: bytes) -> Packet:
    level, bridge, position = _protocol(body)
    if position + 3 > len(body):
        raise PacketViolation(Reason.MALFORMED, "CONNECT ends before its keep-alive")
    flags = body[position]
    _check_connect_flags(flags, level)
    keep_alive_s = body[position + 1] << 8 | body[position + 2]
    position += 3
    properties = will = username = password = None
    if level == LEVEL_5:
        properties, client_id, will, position = _connect_fields(body, position, bool(flags & _FLAG_WILL))
    else:
        client_id, position = read_string(body, position, "client id")
        if flags & _FLAG_WILL:
            topic, position = read_string(body, position, "will topic")
            payload, position = read_binary(body, position, "will message")
            will = packets.Will(topic.encode(), payload, 0, False)
    if will is not None:
        will.qos, will.retain = flags >> 3 & 3, bool(flags & _FLAG_WILL_RETAIN)
    if flags & _FLAG_USERNAME:
        username, position = read_string(body, position, "user name")
    if flags & _FLAG_PASSWORD:
        password, position = read_binary(body, position, "password")
    if position != len(body):
        raise PacketViolation(Reason.MALFORMED, f"{len(body) - position} bytes behind the last field of CONNECT")
    clean = bool(flags & _FLAG_CLEAN)
    return packets.Connect(client_id, clean, keep_alive_s, username, password, will, level, properties or None, bridge)


def _protocol(body: bytes) -> tuple[int, bool, int]:
    """Check protocol name and level; return the level to use, whether it is a bridge, and where the flags are."""
    name, position = read_binary(body, 0, "protocol name")
    if name not in PROTOCOL_NAMES:
        raise PacketViolation(Reason.PROTOCOL_NAME, f"protocol name {name[:32]!r} [MQTT-3.1.2-1]")
    if position >= len(body):
        raise PacketViolation(Reason.MALFORMED, "CONNECT ends before its protocol level")
    level = body[position]
    spoken = _LEVELS.get((name, level))
    if spoken is None:
        raise UnsupportedLevel(name, level)
    return *spoken, position + 1


def level_of(body: bytes) -> int:
    """The level at which to answer a CONNECT, whatever else is wrong with it."""
    return LEVEL_5 if body.startswith((b"\x00\x04MQTT\x05", b"\x00\x04MQTT\x85")) else LEVEL_3


def _check_connect_flags(flags: int, level: int) -> None:
    if flags & 1:
        raise PacketViolation(Reason.FLAGS, "reserved connect flag is set [MQTT-3.1.2-3]")
    will_qos = flags >> 3 & 3
    if will_qos == 3:
        raise PacketViolation(Reason.QOS, "will QoS 3 [MQTT-3.1.2-14]")
    if not flags & _FLAG_WILL and (will_qos or flags & _FLAG_WILL_RETAIN):
        raise PacketViolation(Reason.FLAGS, "will QoS or will retain without a will [MQTT-3.1.2-13] [MQTT-3.1.2-15]")
    if level == LEVEL_3 and flags & _FLAG_PASSWORD and not flags & _FLAG_USERNAME:
        raise PacketViolation(Reason.FLAGS, "password without a user name [MQTT-3.1.2-22]")


def _connack(_: int, body: bytes) -> Packet:
    if len(body) != 2 or body[0] > 1:
        raise PacketViolation(Reason.MALFORMED, f"CONNACK body {body[:8].hex()}")
    return packets.Connack(bool(body[0]), body[1])


def _publish(flags: int, body: bytes) -> Packet:
    qos, dup, topic, packet_id, position = _publish_start(flags, body)
    return packets.Publish(topic, body[position:], qos, bool(flags & 1), dup, packet_id)


def _only_packet_id(packet_type: int, make: Callable[[int], Packet]) -> Callable[[int, bytes], Packet]:
    name = packets.PACKET_NAMES[packet_type]

    def decode_it(_: int, body: bytes) -> Packet:
        if len(body) != 2:
            raise PacketViolation(Reason.LENGTH, f"{name} of remaining length {len(body)}, it must be 2")
        return make(read_packet_id(body, 0, name))

    return decode_it


def _empty(packet_type: int, make: Callable[[], Packet]) -> Callable[[int, bytes], Packet]:
    name = packets.PACKET_NAMES[packet_type]

    def decode_it(_: int, body: bytes) -> Packet:
        if body:
            raise PacketViolation(Reason.LENGTH, f"{name} of remaining length {len(body)}, it must be 0")
        return make()

    return decode_it


def _subscribe(_: int, body: bytes) -> Packet:
    packet_id = read_packet_id(body, 0, "SUBSCRIBE")
    filters: list[tuple[str, int]] = []
    position = 2
    while position < len(body):
        topic_filter, position = read_string(body, position, "topic filter")
        if position >= len(body):
            raise PacketViolation(Reason.MALFORMED, "SUBSCRIBE ends before a requested QoS")
        qos = body[position]
        if qos > 2:
            raise PacketViolation(Reason.QOS, f"requested QoS byte {qos:#x} [MQTT-3-8.3-4]")
        filters.append((topic_filter, qos))
        position += 1
    if not filters:
        raise PacketViolation(Reason.MALFORMED, "SUBSCRIBE without a topic filter [MQTT-3.8.3-3]")
    return packets.Subscribe(packet_id, filters)


def _suback(_: int, body: bytes) -> Packet:
    packet_id = read_packet_id(body, 0, "SUBACK")
    codes = list(body[2:])
    if not codes or any(code > 2 and code != SUBSCRIBE_FAILURE for code in codes):
        raise PacketViolation(Reason.MALFORMED, "SUBACK without codes or with a reserved one [MQTT-3.9.3-2]")
    return packets.Suback(packet_id, codes)


def _unsubscribe(_: int, body: bytes) -> Packet:
    packet_id = read_packet_id(body, 0, "UNSUBSCRIBE")
    filters: list[str] = []
    position = 2
    while position < len(body):
        topic_filter, position = read_string(body, position, "topic filter")
        filters.append(topic_filter)
    if not filters:
        raise PacketViolation(Reason.MALFORMED, "UNSUBSCRIBE without a topic filter [MQTT-3.10.3-2]")
    return packets.Unsubscribe(packet_id, filters)


_DECODERS: dict[int, Callable[[int, bytes], Packet]] = {
    packets.CONNECT: _connect,
    packets.CONNACK: _connack,
    packets.PUBLISH: _publish,
    packets.PUBACK: _only_packet_id(packets.PUBACK, packets.Puback),
    packets.PUBREC: _only_packet_id(packets.PUBREC, packets.Pubrec),
    packets.PUBREL: _only_packet_id(packets.PUBREL, packets.Pubrel),
    packets.PUBCOMP: _only_packet_id(packets.PUBCOMP, packets.Pubcomp),
    packets.SUBSCRIBE: _subscribe,
    packets.SUBACK: _suback,
    packets.UNSUBSCRIBE: _unsubscribe,
    packets.UNSUBACK: _only_packet_id(packets.UNSUBACK, packets.Unsuback),
    packets.PINGREQ: _empty(packets.PINGREQ, packets.Pingreq),
    packets.PINGRESP: _empty(packets.PINGRESP, packets.Pingresp),
    packets.DISCONNECT: _empty(packets.DISCONNECT, packets.Disconnect),
}

_FLAGS = dict.fromkeys(_DECODERS, 0) | {packets.PUBREL: 2, packets.SUBSCRIBE: 2, packets.UNSUBSCRIBE: 2}
"""The only flags each packet type but PUBLISH may carry [MQTT-2.2.2-1]."""
