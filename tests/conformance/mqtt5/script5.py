"""The words of a scenario as the bytes of a packet of MQTT 5; the language is in the README beside this file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conformance import wire
from tests.conformance.mqtt3 import script
from tests.conformance.mqtt3.script import Fields

HERE = Path(__file__).parent
LEVEL = 5

WILL = ("will_format", "will_expiry", "will_content_type", "will_response_topic", "will_correlation", "will_user")
"""Properties of a will that a PUBLISH has as well; those have another name in scripts when they are a will's."""


def packet_of(words: list[str]) -> bytes:
    """The packet that a line describes."""
    fields = Fields(words[1:])
    encoded = _MAKERS[words[0]](fields)
    assert not fields.fields, f"unknown fields {list(fields.fields)} of {words[0]}"
    return encoded


def _properties(fields: Fields) -> bytes:
    """The properties of table 2-4 that the line names, those of a will left out."""
    return wire.properties([(name, word) for name in wire.PROPERTIES for word in fields.many(name)])


def _connect(fields: Fields) -> bytes:
    """CONNECT [3.1]; the properties of a will precede its topic [3.1.3.2]."""
    will = [(name.removeprefix("will_"), word) for name in WILL for word in fields.many(name)]
    will += [("will_delay", word) for word in fields.many("will_delay")]
    return script.connect_packet(fields, LEVEL, "user_name", _properties(fields), wire.properties(will))


def _acknowledgement(first: int) -> Callable[[Fields], bytes]:
    """PUBACK to PUBCOMP [3.4 to 3.7]: without properties their length, and then a reason of 0, may be left out."""

    def encode(fields: Fields) -> bytes:
        return wire.packet(first, fields.packet_id(), _reason(fields))

    return encode


def _reason(fields: Fields) -> bytes:
    properties, code = _properties(fields), fields.number("code")
    if properties != b"\0":
        return bytes((code,)) + properties
    return bytes((code,)) if code else b""


def _codes(first: int) -> Callable[[Fields], bytes]:
    return lambda fields: wire.packet(first, fields.packet_id(), _properties(fields), fields.codes())


def _connack(fields: Fields) -> bytes:
    """CONNACK [3.2]: session present, the code, properties."""
    return wire.packet(wire.CONNACK, bytes((fields.flag("present"), fields.number("code"))), _properties(fields))


_MAKERS: dict[str, Callable[[Fields], bytes]] = {
    "connect": _connect,
    "connack": _connack,
    "publish": lambda fields: script.publish_packet(fields, _properties(fields)),
    "puback": _acknowledgement(wire.PUBACK),
    "pubrec": _acknowledgement(wire.PUBREC),
    "pubrel": _acknowledgement(wire.PUBREL),
    "pubcomp": _acknowledgement(wire.PUBCOMP),
    "subscribe": lambda fields: script.subscribe_packet(fields, _properties(fields)),
    "suback": _codes(wire.SUBACK),
    "unsubscribe": lambda fields: script.unsubscribe_packet(fields, _properties(fields)),
    "unsuback": _codes(wire.UNSUBACK),
    "pingreq": script.MAKERS["pingreq"],
    "pingresp": script.MAKERS["pingresp"],
    "disconnect": lambda fields: wire.packet(wire.DISCONNECT, _reason(fields)),
    "auth": lambda fields: wire.packet(wire.AUTH, _reason(fields)),
}
