"""The control packets of MQTT 3.1.1 as values, and the numbers of their types.

Invariant: a packet object holds exactly what is on the wire, nothing derived; `codec.decode(codec.encode(packet)) ==
packet`. Topic names stay bytes (they are keys, never text, on the hot path); client ids, user names and filters are
text. Pure: no input or output, no clock. `msgspec.Struct` because an object costs a third of a slots dataclass.
"""

from __future__ import annotations

import msgspec

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
}
"""Packet type -> its name in the standard; 0 and 15 are reserved and have none."""

PACKET_ID_MAX = 65_535
"""Packet ids are 1..65,535; 0 is never valid [MQTT-2.3.1-1]."""


class Will(msgspec.Struct, gc=False):
    """The message a server publishes when a connection ends without DISCONNECT."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool


class Connect(msgspec.Struct, gc=False):
    """CONNECT of protocol level 4; `keep_alive_s` 0 means no keep-alive."""

    client_id: str
    clean: bool
    keep_alive_s: int
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None


class Connack(msgspec.Struct, gc=False):
    """CONNACK: the answer to CONNECT; `code` as in `reason_codes`."""

    session_present: bool
    code: int


class Publish(msgspec.Struct, gc=False):
    """PUBLISH in either direction; `packet_id` is 0 exactly when `qos` is 0."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int


class Puback(msgspec.Struct, gc=False):
    """PUBACK: a QoS 1 message has been taken over."""

    packet_id: int


class Pubrec(msgspec.Struct, gc=False):
    """PUBREC: a QoS 2 message has been taken over, step one."""

    packet_id: int


class Pubrel(msgspec.Struct, gc=False):
    """PUBREL: the sender of a QoS 2 message will not send it again."""

    packet_id: int


class Pubcomp(msgspec.Struct, gc=False):
    """PUBCOMP: the id of a QoS 2 message is free again."""

    packet_id: int


class Subscribe(msgspec.Struct, gc=False):
    """SUBSCRIBE: (filter, requested QoS) pairs, at least one."""

    packet_id: int
    filters: list[tuple[str, int]]


class Suback(msgspec.Struct, gc=False):
    """SUBACK: one granted QoS or 0x80 per filter of the SUBSCRIBE, in its order."""

    packet_id: int
    codes: list[int]


class Unsubscribe(msgspec.Struct, gc=False):
    """UNSUBSCRIBE: the filters to give up, at least one."""

    packet_id: int
    filters: list[str]


class Unsuback(msgspec.Struct, gc=False):
    """UNSUBACK: the filters of that UNSUBSCRIBE are gone."""

    packet_id: int


class Pingreq(msgspec.Struct, gc=False):
    """PINGREQ: the client is alive."""


class Pingresp(msgspec.Struct, gc=False):
    """PINGRESP: so is the server."""


class Disconnect(msgspec.Struct, gc=False):
    """DISCONNECT: the client ends the connection properly; its will is dropped."""


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
)
"""Any control packet."""
