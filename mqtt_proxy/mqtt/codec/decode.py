"""Bytes to packets and back, one table row per packet type.

Invariant: `decode` accepts exactly what MQTT 3.1.1, or MQTT 5 at level 5, allows in a packet by itself (what is allowed
*when* is the session's table); `decode(*split(encode(packet)), level) == packet`; whatever bytes come, `decode` returns
a packet or raises `PacketViolation`. `codec5` has the rows that MQTT 5 changes; a CONNECT says its level itself. The
hot packets, PUBLISH and PUBACK in runs, are taken by `scan` instead; this module is their complete form and the judge
of theirs.
"""

from __future__ import annotations

from collections.abc import Callable

from mqtt_proxy.mqtt.codec import decode5 as codec5
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.packets import BRIDGE_BIT, LEVEL_3, LEVEL_5, Packet
from mqtt_proxy.mqtt.codec.reason_codes import SUBSCRIBE_FAILURE, PacketViolation, Reason
from mqtt_proxy.mqtt.codec.wire import fixed_header, read_binary, read_packet_id, read_string

__all__ = ["PROTOCOL_NAMES", "UnsupportedLevel", "decode", "level_of", "split"]

_LEVELS = {
    (b"MQTT", LEVEL_3): (LEVEL_3, False),
    (b"MQTT", LEVEL_5): (LEVEL_5, False),
    (b"MQTT", BRIDGE_BIT | LEVEL_3): (LEVEL_3, True),
    (b"MQTT", BRIDGE_BIT | LEVEL_5): (LEVEL_5, True),
    (b"MQIsdp", BRIDGE_BIT | 3): (LEVEL_3, True),
}
"""Protocol name and level of CONNECT -> the level to speak, and whether it is a bridge.

Mosquitto's bridges begin with the high bit set, MQTT 3.1 included, whose packets are those of 3.1.1; with MQTT 5 they
leave it out and EMQX's (`bridge_mode`) do not."""

PROTOCOL_NAMES = (b"MQTT", b"MQIsdp")
"""Protocol names that get an answer; any other is not MQTT and is closed on."""

_FLAG_USERNAME, _FLAG_PASSWORD, _FLAG_WILL_RETAIN, _FLAG_WILL, _FLAG_CLEAN = 0x80, 0x40, 0x20, 0x04, 0x02


class UnsupportedLevel(PacketViolation):
    """A CONNECT of another protocol level: well formed as far as it can be read, to be refused by code."""

    def __init__(self, name: bytes, level: int) -> None:
        super().__init__(
            Reason.PROTOCOL_LEVEL,
            f"protocol {name.decode()} level {level}; this server speaks 4 (3.1.1) and 5",
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
    decoder = codec5.DECODERS.get(packet_type) if level == LEVEL_5 else None
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
        properties, client_id, will, position = codec5.connect_fields(body, position, bool(flags & _FLAG_WILL))
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
    """Check protocol name and level; the level to speak, whether it is a bridge's, and where the connect flags are."""
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
    """The level to answer a CONNECT at, whatever else is wrong with it."""
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
