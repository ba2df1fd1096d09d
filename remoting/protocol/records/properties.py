"""RocketMQ's text form of message properties, `key 01 value 02` repeated; and the keys of a record.

The keys are the property UNIQ_KEY (not of MQTT messages, whose properties belong to their devices) and the words of the
keys field. Records in no queue and staged ones have none: no reader may see them. Keys are indexed by the CRC32C of
topic, a zero byte and key; where two keys share a number, `has_key` compares the record.
Invariant: encode then decode gives the same pairs in the same order; 01 and 02 never occur inside a key or a value, so
no value can inject a property; the native core finds the same numbers in the same order. Thread rule: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from remoting.native.checksum import crc32c
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.record import FLAG_MQTT, FLAG_STAGED, RecordView

PROPERTIES_SIZE_BYTES_MAX = 32_767
"""Longest text form; its length field in a stored message is a signed 16-bit number. More is refused."""

_NAME_END = b"\x01"
_PAIR_END = b"\x02"

KEYS = b"KEYS"
TAGS = b"TAGS"
UNIQUE_KEY = b"UNIQ_KEY"

RESERVED: frozenset[bytes] = frozenset(
    b"""KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
    ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY
    EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME INNER_NUM INNER_BASE DUP_INFO
    CHECK_IMMUNITY_TIME_IN_SECONDS TRAN_PREPARED_QUEUE_OFFSET __transactionId__ TRANSACTION_CHECK_TIMES INSTANCE_ID
    CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE POP_CK POP_CK_OFFSET 1ST_POP_TIME
    __SHARDINGKEY PROPERTY_FORWARD_QUEUE_ID REDIRECT INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET TRACE_CONTEXT
    TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_DELAY_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS
    TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL TOPIC_SYS_FLAG GROUP_SYS_FLAG __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
    DLQ_ORIGIN_MESSAGE_ID __CRC32#""".split()
)
"""Names with a meaning of their own (RocketMQ MessageConst); a user's property may not use them."""
TRANSIENT_PREFIX = b"__RMQ.TRANSIENT."
"""Properties with this prefix live on the wire only and are not stored."""


def encode_properties(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the text form; LocalMisuse for a separator inside a pair or a text that is too long."""
    parts: list[bytes] = []
    for key, value in pairs:
        parts += (key, _NAME_END, value, _PAIR_END)
    text = b"".join(parts)
    # As many separators as were written: none stands inside a pair.
    if 4 * text.count(_NAME_END) != len(parts) or 4 * text.count(_PAIR_END) != len(parts):
        key = next(part for part in parts[::4] + parts[2::4] if _NAME_END in part or _PAIR_END in part)
        raise LocalMisuse(f"property key or value {key[:64]!r} holds a separator (01 or 02)")
    if len(text) > PROPERTIES_SIZE_BYTES_MAX:
        raise LocalMisuse(f"properties of {len(text)} bytes, the limit is {PROPERTIES_SIZE_BYTES_MAX}")
    return text


def decode_properties(text: bytes) -> list[tuple[bytes, bytes]]:
    """Return the pairs of a text form; like RocketMQ, leave out what has no 01 and do without the last 02."""
    pairs = []
    for part in text.split(_PAIR_END):
        key, separator, value = part.partition(_NAME_END)
        if separator:
            pairs.append((key, value))
    return pairs


def is_reserved(key: bytes) -> bool:
    """True for names a user's property may not use."""
    return key in RESERVED or key.startswith(TRANSIENT_PREFIX)


KEYS_PER_RECORD_MAX = 64
"""Different keys of one record that can be looked up; RocketMQ's senders use one or two. Further ones are left out."""
SEPARATOR = b" "


def key_hash(topic: bytes, key: bytes) -> int:
    """Return the number under which `key` of `topic` is indexed."""
    return crc32c(key, crc32c(b"\0", crc32c(topic)))


def unique_key(view: RecordView) -> bytes:
    """Return the unique key its producer gave a record; empty without one."""
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
