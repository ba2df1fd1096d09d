"""The control packets of MQTT 3.1.1 and MQTT 5 as values, and the numbers of their types.

Fields that only MQTT 5 has come last in each packet and have a default, which is their meaning in 3.1.1.

Invariant: a packet object holds exactly what is on the wire, nothing derived; `codec.decode(codec.encode(packet)) ==
packet` at its level. Topic names stay bytes (they are keys, never text, on the hot path); client ids, user names and
filters are text. Pure: no input or output, no clock. `msgspec.Struct` because an object costs a third of a slots
dataclass.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mqtt_proxy.mqtt.codec.publish import Publish as Publish  # noqa: PLC0414 - all packets are found here
from remoting.protocol.records.properties import MessageProperties

LEVEL_3 = 4
"""Protocol level of MQTT 3.1.1."""
LEVEL_5 = 5
"""Protocol level of MQTT 5."""
VERSIONS = {LEVEL_3: "3.1.1", LEVEL_5: "5"}
"""The version of each level, as people write it; 3.1 is served and counted as 3.1.1."""
BRIDGE_BIT = 0x80
"""Set in the protocol level by brokers that connect as a bridge, as Mosquitto and RSMB do for MQTT 3.1 and 3.1.1."""

CONNECT = 1
CONNACK = 2
PUBLISH = 3
PUBACK = 4
PUBREC = 5
PUBREL = 6
PUBCOMP = 7
SUBSCRIBE = 8
SUBACK = 9
UNSUBSCRIBE = 10
UNSUBACK = 11
PINGREQ = 12
PINGRESP = 13
DISCONNECT = 14
AUTH = 15

PACKET_NAMES = {
    CONNECT: "CONNECT",
    CONNACK: "CONNACK",
    PUBLISH: "PUBLISH",
    PUBACK: "PUBACK",
    PUBREC: "PUBREC",
    PUBREL: "PUBREL",
    PUBCOMP: "PUBCOMP",
    SUBSCRIBE: "SUBSCRIBE",
    SUBACK: "SUBACK",
    UNSUBSCRIBE: "UNSUBSCRIBE",
    UNSUBACK: "UNSUBACK",
    PINGREQ: "PINGREQ",
    PINGRESP: "PINGRESP",
    DISCONNECT: "DISCONNECT",
    AUTH: "AUTH",
}
"""Packet type -> its name in the standard; 0 is reserved and has none, 15 exists in MQTT 5 only."""

QOS_2 = 2


PROPERTY_REPEATS_MAX = 1_024
"""Most repeats of a property in one packet, of any kind; more cost time without use."""


class Will(msgspec.Struct, gc=False):
    """The message a server publishes when a connection ends without DISCONNECT."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: MessageProperties | None = None
    delay_s: int = 0


class Connect(msgspec.Struct, gc=False):
    """CONNECT; `clean` is Clean Start at level 5, `keep_alive_s` 0 means no keep-alive."""

    client_id: str
    clean: bool
    keep_alive_s: int
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    level: int = LEVEL_3
    properties: dict[int, Any] | None = None
    bridge: bool = False
    """Whether the client is another broker and declares it, with the high bit of the protocol level."""


class Connack(msgspec.Struct, gc=False):
    """CONNACK: the answer to CONNECT; `code` as in `reason_codes`."""

    session_present: bool
    code: int
    properties: dict[int, Any] | None = None


class Puback(msgspec.Struct, gc=False):
    """PUBACK: a QoS 1 message has been accepted."""

    packet_id: int
    reason: int = 0
    properties: dict[int, Any] | None = None


class Pubrec(msgspec.Struct, gc=False):
    """PUBREC: a QoS 2 message has been accepted, step one."""

    packet_id: int
    reason: int = 0
    properties: dict[int, Any] | None = None


class Pubrel(msgspec.Struct, gc=False):
    """PUBREL: the sender of a QoS 2 message will not send it again."""

    packet_id: int
    reason: int = 0
    properties: dict[int, Any] | None = None


class Pubcomp(msgspec.Struct, gc=False):
    """PUBCOMP: the id of a QoS 2 message is free again."""

    packet_id: int
    reason: int = 0
    properties: dict[int, Any] | None = None


class Subscribe(msgspec.Struct, gc=False):
    """SUBSCRIBE: (filter, options) pairs, at least one; options are the requested QoS, at level 5 with further bits."""

    packet_id: int
    filters: list[tuple[str, int]]
    properties: dict[int, Any] | None = None


class Suback(msgspec.Struct, gc=False):
    """SUBACK: one granted QoS or 0x80 per filter of the SUBSCRIBE, in its order."""

    packet_id: int
    codes: list[int]
    properties: dict[int, Any] | None = None


class Unsubscribe(msgspec.Struct, gc=False):
    """UNSUBSCRIBE: the filters to remove, at least one."""

    packet_id: int
    filters: list[str]
    properties: dict[int, Any] | None = None


class Unsuback(msgspec.Struct, gc=False):
    """UNSUBACK: the filters of that UNSUBSCRIBE are removed; a code for each at level 5."""

    packet_id: int
    codes: list[int] = []
    properties: dict[int, Any] | None = None


class Pingreq(msgspec.Struct, gc=False):
    """PINGREQ: the client is alive."""


class Pingresp(msgspec.Struct, gc=False):
    """PINGRESP: so is the server."""


class Disconnect(msgspec.Struct, gc=False):
    """DISCONNECT: one side ends the connection properly."""

    reason: int = 0
    properties: dict[int, Any] | None = None


class Auth(msgspec.Struct, gc=False):
    """AUTH: a step of an extended authentication (MQTT 5)."""

    reason: int = 0
    properties: dict[int, Any] | None = None


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
"""Any control packet."""
