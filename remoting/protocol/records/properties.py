"""Properties of messages: RocketMQ's text form `key 01 value 02`, the keys of a record, and the properties of MQTT 5.

The keys are the property UNIQ_KEY (not of MQTT messages, whose properties belong to their devices) and the words of the
keys field. Records in no queue and staged ones have none: no reader may see them. Keys are indexed by the CRC32C of
topic, a zero byte and key; where two keys share a number, `has_key` compares the record. A record keeps the properties
of an MQTT 5 publish as:

    record property       MQTT 5 property            value
    mqttPayloadFormat     Payload Format Indicator   0 or 1
    mqttExpiry            Message Expiry Interval    seconds, decimal, counted from the record's store time
    mqttContentType       Content Type               text, quoted
    mqttResponseTopic     Response Topic             text, quoted
    mqttCorrelationData   Correlation Data           base64
    mqttBridge            (none)                     name of the bridge connection by which it came in
    any other             User Property              unchanged, or quoted under `%user%` + quoted key

They follow the first two properties of an MQTT record, originMqttTopic and clientId (a row of Spark's has only the
first). User properties keep their key, order and repeats, so that RocketMQ clients and Spark see ordinary ones. A
pair whose key is reserved (ours, RocketMQ's, empty, beginning with `%`), or that contains one of the separators 01 and
02, is escaped; quoting turns exactly `%`, 01 and 02 into `%25`, `%01` and `%02`.
Invariants: encode then decode gives the same pairs in the same order; 01 and 02 never occur inside a key or a value, so
no value can inject a property; the native core finds the same hashes in the same order; `from_pairs(to_pairs(p)) == p`
for every p that is not empty. Thread rule: pure functions.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator

import msgspec

from remoting.native.checksum import crc32c
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, FLAG_STAGED, MQTT_TOPIC_KEY, RecordView

PROPERTIES_SIZE_BYTES_MAX = 32_767
"""Longest text form; its length field in a stored message is a signed 16-bit number. More is refused."""

_NAME_END = b"\x01"
_PAIR_END = b"\x02"

KEYS = b"KEYS"
TAGS = b"TAGS"
UNIQUE_KEY = b"UNIQ_KEY"

RESERVED: frozenset[bytes] = frozenset(
    b"""KEYS TAGS WAIT DELAY RETRY_TOPIC ORIGIN_GROUP REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
    ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY TRANS_OFFSET
    EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME _SYS_MSG_PRIORITY_ INNER_NUM INNER_BASE DUP_INFO
    CHECK_IMMUNITY_TIME_IN_SECONDS TRAN_PREPARED_QUEUE_OFFSET __transactionId__ TRANSACTION_CHECK_TIMES INSTANCE_ID
    CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE POP_CK POP_CK_OFFSET 1ST_POP_TIME
    __SHARDINGKEY __LITE_TOPIC PROPERTY_FORWARD_QUEUE_ID FORWARD_QUEUE_ID REDIRECT INNER_MULTI_DISPATCH
    INNER_MULTI_QUEUE_OFFSET TRACE_CONTEXT TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_DELAY_MS TIMER_IN_MS TIMER_ENQUEUE_MS
    TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_ROLL_LABEL TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL E_T
    TOPIC_SYS_FLAG GROUP_SYS_FLAG __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID CRC32 __CRC32#
    qosLevel""".split()
)
"""Names with a special meaning; a user's property may not use them. All of RocketMQ's `MessageConst` that are names of
properties, some of its other releases, and the one by which its clients read the QoS of an MQTT message."""
OWN_PREFIXES = (b"LIGHTMQ_", b"__rmq.")
"""Names that only this server gives: marks of mirrored messages, and fields of RocketMQ's that records have no room
for."""
TRANSIENT_PREFIX = b"__RMQ.TRANSIENT."
"""Properties with this prefix exist on the wire only and are not stored."""
_RESERVED_PREFIXES = (TRANSIENT_PREFIX, *OWN_PREFIXES)


def encode_properties(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the text form. Raises LocalMisuse for a separator inside a pair or a text that is too long."""
    parts: list[bytes] = []
    for key, value in pairs:
        parts += (key, _NAME_END, value, _PAIR_END)
    text = b"".join(parts)
    # As many separators as were written: none is inside a pair.
    if 4 * text.count(_NAME_END) != len(parts) or 4 * text.count(_PAIR_END) != len(parts):
        key = next(part for part in parts[::4] + parts[2::4] if _NAME_END in part or _PAIR_END in part)
        raise LocalMisuse(f"property key or value {key[:64]!r} holds a separator (01 or 02)")
    if len(text) > PROPERTIES_SIZE_BYTES_MAX:
        raise LocalMisuse(f"properties of {len(text)} bytes, the limit is {PROPERTIES_SIZE_BYTES_MAX}")
    return text


def decode_properties(text: bytes) -> list[tuple[bytes, bytes]]:
    """Return the pairs of a text form; like RocketMQ, skip items without 01, and do not require the last 02."""
    pairs = []
    for part in text.split(_PAIR_END):
        key, separator, value = part.partition(_NAME_END)
        if separator:
            pairs.append((key, value))
    return pairs


def extended(text: bytes, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a text form with these pairs, which replace earlier ones of the same names; unchanged if it would be too
    long."""
    parts = [text] if not text or text.endswith(_PAIR_END) else [text, _PAIR_END]
    for key, value in pairs:
        parts += (key, _NAME_END, value, _PAIR_END)
    made = b"".join(parts)
    return made if len(made) <= PROPERTIES_SIZE_BYTES_MAX else text


def is_reserved(key: bytes) -> bool:
    """True for names a user's property may not use."""
    return key in RESERVED or key.startswith(_RESERVED_PREFIXES)


KEYS_PER_RECORD_MAX = 64
"""Distinct keys of one record that are indexed; RocketMQ's senders use one or two. Further ones are left out."""
SEPARATOR = b" "


def key_hash(topic: bytes, key: bytes) -> int:
    """Return the number under which `key` of `topic` is indexed."""
    return crc32c(key, crc32c(b"\0", crc32c(topic)))


def unique_key(view: RecordView) -> bytes:
    """Return the unique key that its producer assigned; empty without one."""
    if view.flags & FLAG_MQTT:
        return b""
    return next((value for name, value in view.properties() if name == UNIQUE_KEY), b"")


def keys_of(view: RecordView) -> Iterator[bytes]:
    """Yield the keys a record is found by, the unique key first; a key may occur twice."""
    if view.flags & FLAG_STAGED or not view.dispatch():
        return
    yield unique_key(view)
    yield from view.keys.split(SEPARATOR)


def key_hashes(view: RecordView) -> list[int]:
    """Return the numbers of a record's keys, each once."""
    topic_sum = crc32c(b"\0", crc32c(view.topic))
    found: list[int] = []
    for key in keys_of(view):
        if key and (number := crc32c(key, topic_sum)) not in found:
            found.append(number)
            if len(found) == KEYS_PER_RECORD_MAX:
                break
    return found


def has_key(view: RecordView, topic: bytes, key: bytes, *, unique_only: bool) -> bool:
    """Whether the record is of `topic` and has `key` (`unique_only`: as its unique key)."""
    if view.topic != topic or not key:
        return False
    return key in ((unique_key(view),) if unique_only else keys_of(view))


PAYLOAD_FORMAT = b"mqttPayloadFormat"
EXPIRY = b"mqttExpiry"
CONTENT_TYPE = b"mqttContentType"
RESPONSE_TOPIC = b"mqttResponseTopic"
CORRELATION_DATA = b"mqttCorrelationData"
USER_PREFIX = b"%user%"
"""Prefix of an escaped user property's key."""

BRIDGE_KEY = b"mqttBridge"
"""The bridge connection by which a message arrived; never set by publishers nor shown to subscribers."""

OWN_KEYS = frozenset({PAYLOAD_FORMAT, EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA})
_IDENTITY_KEYS = frozenset({MQTT_TOPIC_KEY, CLIENT_ID_KEY, BRIDGE_KEY})

_QUOTED = {0x25: b"%25", 0x01: b"%01", 0x02: b"%02"}
_SPECIAL = (b"%", b"\x01", b"\x02")


class MessageProperties(msgspec.Struct, gc=False):
    """The properties of one message that its receivers get; None = absent."""

    payload_format: int | None = None
    expiry_s: int | None = None
    content_type: bytes | None = None
    response_topic: bytes | None = None
    correlation_data: bytes | None = None
    user: list[tuple[bytes, bytes]] = []


def to_pairs(properties: MessageProperties) -> list[tuple[bytes, bytes]]:
    """Return the record properties of a message, which follow originMqttTopic and clientId."""
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
    """Return the MQTT 5 properties of a record, None without any. Unreadable values of our keys are left out."""
    found = MessageProperties()
    user: list[tuple[bytes, bytes]] = []
    said = False
    for key, value in pairs:
        if key in OWN_KEYS:
            said = _take_own(found, key, value) or said
        elif key.startswith(USER_PREFIX):
            user.append((unquoted(key[len(USER_PREFIX) :]), unquoted(value)))
        elif key not in _IDENTITY_KEYS and not is_reserved(key):
            user.append((key, value))
    if user:
        found.user = user
    return found if said or user else None


def expiry_of(pairs: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return only a record's Message Expiry Interval, in seconds; None when it does not expire."""
    for key, value in pairs:
        if key == EXPIRY:
            return _number(value)
    return None


def expires_ms(record: RecordView) -> int | None:
    """When a stored message expires, in ms of its broker's clock; None when it does not."""
    if EXPIRY not in bytes(record.meta):
        return None
    expiry_s = expiry_of(record.properties())
    return None if expiry_s is None else record.store_ms + expiry_s * 1_000


def _take_own(found: MessageProperties, key: bytes, value: bytes) -> bool:
    if key == CONTENT_TYPE:
        found.content_type = unquoted(value)
    elif key == RESPONSE_TOPIC:
        found.response_topic = unquoted(value)
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
    """Return a decimal u32; None for anything else, which another writer may have stored."""
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
    """Return text with `%` and the separators 01 and 02 of RocketMQ's text form escaped."""
    if not any(special in text for special in _SPECIAL):
        return text
    return b"".join([_QUOTED.get(byte) or bytes((byte,)) for byte in text])


def unquoted(text: bytes) -> bytes:
    """Return the original text of a `quoted` one."""
    if b"%" not in text:
        return text
    # `%` itself last, so that its result is not unescaped again.
    return text.replace(b"%01", b"\x01").replace(b"%02", b"\x02").replace(b"%25", b"%")
