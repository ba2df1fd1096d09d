"""The properties of an MQTT 5 publish, and how a record keeps them.

    record property       MQTT 5 property            value
    mqttPayloadFormat     Payload Format Indicator   0 or 1
    mqttExpiry            Message Expiry Interval    seconds, decimal, counted from the record's store time
    mqttContentType       Content Type               text, quoted
    mqttResponseTopic     Response Topic             text, quoted
    mqttCorrelationData   Correlation Data           base64
    mqttBridge            (none)                     name of the bridge connection by which it came in
    any other             User Property              as it is, or quoted under `%user%` + quoted key

They stand behind the first two properties of an MQTT record, originMqttTopic and clientId (a row of Spark's has only
the first). User properties keep their key, order and repeats, so that RocketMQ clients and Spark see ordinary ones. A
pair whose key means something else (ours, RocketMQ's, empty, beginning with `%`), or that holds one of the separators
01 and 02 of RocketMQ's text form, is escaped; quoting turns exactly `%`, 01 and 02 into `%25`, `%01` and `%02`.
Invariant: `from_pairs(to_pairs(p)) == p` for every p that is not empty. Thread rule: pure functions.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable

import msgspec

from remoting.protocol.records.properties import is_reserved
from remoting.protocol.records.record import CLIENT_ID_KEY, MQTT_TOPIC_KEY

PAYLOAD_FORMAT = b"mqttPayloadFormat"
EXPIRY = b"mqttExpiry"
CONTENT_TYPE = b"mqttContentType"
RESPONSE_TOPIC = b"mqttResponseTopic"
CORRELATION_DATA = b"mqttCorrelationData"
USER_PREFIX = b"%user%"
"""What an escaped user property's key begins with."""

BRIDGE_KEY = b"mqttBridge"
"""The bridge connection by which a message arrived; no publisher can set it and no subscriber sees it."""

OWN_KEYS = frozenset({PAYLOAD_FORMAT, EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA})
_IDENTITY_KEYS = frozenset({MQTT_TOPIC_KEY, CLIENT_ID_KEY, BRIDGE_KEY})

_QUOTED = {0x25: b"%25", 0x01: b"%01", 0x02: b"%02"}
_SPECIAL = (b"%", b"\x01", b"\x02")


class MessageProperties(msgspec.Struct, gc=False):
    """The properties of one message that its receivers are to have; None = absent."""

    payload_format: int | None = None
    expiry_s: int | None = None
    content_type: bytes | None = None
    response_topic: bytes | None = None
    correlation_data: bytes | None = None
    user: list[tuple[bytes, bytes]] = []


def to_pairs(properties: MessageProperties) -> list[tuple[bytes, bytes]]:
    """The record properties of a message, to stand behind originMqttTopic and clientId."""
    pairs: list[tuple[bytes, bytes]] = []
    if properties.payload_format is not None:
        pairs.append((PAYLOAD_FORMAT, b"%d" % properties.payload_format))
    if properties.expiry_s is not None:
        pairs.append((EXPIRY, b"%d" % properties.expiry_s))
    if properties.content_type is not None:
        pairs.append((CONTENT_TYPE, quoted(properties.content_type)))
    if properties.response_topic is not None:
        pairs.append((RESPONSE_TOPIC, quoted(properties.response_topic)))
    if properties.correlation_data is not None:
        pairs.append((CORRELATION_DATA, b64encode(properties.correlation_data)))
    pairs += [_escaped(key, value) for key, value in properties.user]
    return pairs


def from_pairs(pairs: Iterable[tuple[bytes, bytes]]) -> MessageProperties | None:
    """The MQTT 5 properties in a record; None when there are none. Unreadable values of our keys are left out."""
    found = MessageProperties()
    user: list[tuple[bytes, bytes]] = []
    said = False
    for key, value in pairs:
        if key in OWN_KEYS:
            said = _take_own(found, key, value) or said
        elif key.startswith(USER_PREFIX):
            user.append((_unquote(key[len(USER_PREFIX) :]), _unquote(value)))
        elif key not in _IDENTITY_KEYS and not is_reserved(key):
            user.append((key, value))
    if user:
        found.user = user
    return found if said or user else None


def expiry_of(pairs: Iterable[tuple[bytes, bytes]]) -> int | None:
    """The Message Expiry Interval of a record alone, in seconds; None when it does not expire."""
    for key, value in pairs:
        if key == EXPIRY:
            return _number(value)
    return None


def _take_own(found: MessageProperties, key: bytes, value: bytes) -> bool:
    if key == CONTENT_TYPE:
        found.content_type = _unquote(value)
    elif key == RESPONSE_TOPIC:
        found.response_topic = _unquote(value)
    elif key == CORRELATION_DATA:
        try:
            found.correlation_data = b64decode(value, validate=True)
        except Base64Error:
            return False
    else:
        number = _number(value)
        if number is None:
            return False
        if key == EXPIRY:
            found.expiry_s = number
        else:
            found.payload_format = number & 1
    return True


def _number(value: bytes) -> int | None:
    """A u32 in decimal; None for anything else: another writer may have put it there."""
    if not value.isdigit() or len(value) > 10:
        return None
    return min(int(value), 0xFFFF_FFFF)


def _escaped(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    if (
        not key
        or key.startswith(b"%")
        or key in OWN_KEYS
        or key in _IDENTITY_KEYS
        or is_reserved(key)
        or any(separator in text for separator in _SPECIAL[1:] for text in (key, value))
    ):
        return USER_PREFIX + quoted(key), quoted(value)
    return key, value


def quoted(text: bytes) -> bytes:
    """Text without `%` and the separators 01 and 02 of RocketMQ's text form."""
    if not any(special in text for special in _SPECIAL):
        return text
    return b"".join([_QUOTED.get(byte) or bytes((byte,)) for byte in text])


def _unquote(text: bytes) -> bytes:
    if b"%" not in text:
        return text
    # The sign itself last, so that what it gives is not looked at again.
    return text.replace(b"%01", b"\x01").replace(b"%02", b"\x02").replace(b"%25", b"%")
