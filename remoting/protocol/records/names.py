"""Names of topics, groups and light queues, and which queue a key belongs to.

A light queue is `%LMQ%` + the MQTT topic or filter with every byte outside [A-Za-z0-9_-] written as %XX (upper-case
hex). The parent topic of an MQTT topic is its first level in the same encoding, so a level can neither name a system
topic nor leave RocketMQ's alphabet:

    level                        parent topic
    plant                        plant
    $SYS                         %24SYS
    (empty: topic "/a")          %
    a name RocketMQ reserves     | + name
    longer than 127 written      first 96 written bytes | 24 hex digits of SHA-256

Invariant: escape is lossless and injective; `|` and a `%` not followed by two hex digits are never its output.
Thread rule: pure functions (with bounded memo tables).
"""

from __future__ import annotations

import hashlib
import re
import zlib
from functools import lru_cache

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.records.record import tag_hash

LMQ_PREFIX = b"%LMQ%"
"""RocketMQ's prefix of light queue names, by which RocketMQ clients pull an MQTT queue."""
_LIGHT = LMQ_PREFIX.decode()
RETRY_PREFIX = "%RETRY%"
RETRY_SEPARATOR = "+"
"""Between group and topic in the name of a retry topic of POP; no name has it."""
DLQ_PREFIX = "%DLQ%"

TOPIC_CHARS_MAX = 127
"""Longest RocketMQ topic; longer names are refused, longer first levels are shortened with a digest."""
SYSTEM_TOPIC_CHARS_MAX = 255
"""Longest retry or dead-letter topic."""
GROUP_CHARS_MAX = 120

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_ESCAPES = tuple(bytes((byte,)) if byte in _SAFE else b"%%%02X" % byte for byte in range(256))
_UNUSUAL = re.compile(rb"[^A-Za-z0-9_/-]")
"""Bytes that keep a name off the fast path: most topics consist of safe characters and slashes."""
_ESCAPED = re.compile(rb"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})*")
_ESCAPE = re.compile(rb"%([0-9A-F]{2})")
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_POP_RETRY = re.compile(r"%RETRY%[%|a-zA-Z0-9_-]+\+[%|a-zA-Z0-9_-]+")
"""Retry topic of one group and topic, made for POP: no other name has a plus sign."""
_PARENT_CACHE_ENTRIES_MAX = 4_096
_SHORTENED_BYTES = 96

SYSTEM_TOPICS = frozenset(
    {
        b"TBW102", b"SCHEDULE_TOPIC_XXXX", b"BenchmarkTest", b"TRANS_CHECK_MAX_TIME_TOPIC", b"SELF_TEST_TOPIC",
        b"OFFSET_MOVED_EVENT",
    }
)  # fmt: skip
"""Topics with a special meaning in RocketMQ; no device may publish to them by its choice of a first level."""
_SYSTEM_PREFIXES = (b"rmq_sys_", b"RMQ_SYS_")
RESERVED_TOPICS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "SELF_TEST_TOPIC",
    }
)  # fmt: skip
"""Topics to which no client sends, in RocketMQ as here."""
_INTERNAL_PREFIX, _TRACES_PREFIX = "rmq_sys_", "rmq_sys_TRACE_DATA_"
"""Topics in which RocketMQ's brokers keep timers, check-points and members, except those of traces by region."""
CONFLICTING_TOPICS = RESERVED_TOPICS | {"TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"}
"""Topics that no administrator creates, changes or deletes, in RocketMQ as here."""


def escape(name: bytes) -> bytes:
    """Return `name` with every byte outside [A-Za-z0-9_-] as %XX."""
    if _UNUSUAL.search(name) is None:
        return name.replace(b"/", b"%2F")
    return b"".join([_ESCAPES[byte] for byte in name])


def unescape(escaped: bytes) -> bytes:
    """Return what `escape` was given; RemoteViolation for bytes that `escape` never writes."""
    if _ESCAPED.fullmatch(escaped) is None:
        raise RemoteViolation(f"{escaped[:64]!r} is not an escaped name")
    name = _ESCAPE.sub(lambda found: bytes((int(found[1], 16),)), escaped)
    if escape(name) != escaped:
        raise RemoteViolation(f"{escaped[:64]!r} escapes bytes that need no escape")
    return name


def light_queue_name(topic_or_filter: bytes) -> bytes:
    """Return the queue name of an exact MQTT topic or a wildcard filter."""
    return LMQ_PREFIX + escape(topic_or_filter)


def light_queue_topic(queue_name: bytes) -> bytes:
    """Return the MQTT topic or filter of a light queue's name; RemoteViolation if it is none."""
    if not queue_name.startswith(LMQ_PREFIX):
        raise RemoteViolation(f"{queue_name[:64]!r} is not the name of a light queue")
    return unescape(queue_name[len(LMQ_PREFIX) :])


def topic_key(queue_name: bytes) -> bytes | None:
    """Return an exact light queue's topic with a zero byte for each slash, None for other queues and of filters.

    In the order of these keys all topics below a level stand together.
    """
    try:
        topic = light_queue_topic(queue_name)
    except RemoteViolation:
        return None
    if not topic or b"+" in topic or b"#" in topic or b"\x00" in topic:
        return None
    return topic.replace(b"/", b"\x00")


def parent_topic(mqtt_topic: bytes) -> bytes:
    """Return the RocketMQ topic that stores `mqtt_topic`."""
    return _parent_of_level(mqtt_topic.partition(b"/")[0])


@lru_cache(maxsize=_PARENT_CACHE_ENTRIES_MAX)
def _parent_of_level(level: bytes) -> bytes:
    if not level:
        return b"%"
    if is_system_topic(level):
        return b"|" + level
    escaped = escape(level)
    if len(escaped) <= TOPIC_CHARS_MAX:
        return escaped
    return b"|".join((escaped[:_SHORTENED_BYTES], hashlib.sha256(level).hexdigest()[:24].encode()))


def is_system_topic(topic: bytes) -> bool:
    """True for the topics RocketMQ reserves."""
    return topic in SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIXES)


def forbids_sends(topic: str) -> bool:
    """True for topics of servers, to which no client sends: neither producers nor rows of Spark."""
    if topic in RESERVED_TOPICS:
        return True
    return topic.startswith(_INTERNAL_PREFIX) and not topic.startswith(_TRACES_PREFIX)


def queue_index(mqtt_topic: bytes, queue_count: int) -> int:
    """Return the parent queue of a topic: the same topic always goes to the same queue, which keeps its order."""
    return zlib.crc32(mqtt_topic) % queue_count


def group_of_derived(topic: str) -> str:
    """The group whose retry or dead-letter topic this is, those of POP included; empty for any other topic."""
    if "/" in topic:
        return ""
    if topic.startswith(RETRY_PREFIX):
        return topic.removeprefix(RETRY_PREFIX).partition(RETRY_SEPARATOR)[0]
    return topic.removeprefix(DLQ_PREFIX) if topic.startswith(DLQ_PREFIX) else ""


def group_of_retry(name: str, topic: str) -> str:
    """The group whose POP retry topic for `topic` is `name`; empty when it is none."""
    if not name.endswith(f"+{topic}") or _POP_RETRY.fullmatch(name) is None:
        return ""
    return name.removeprefix(RETRY_PREFIX).removesuffix(f"+{topic}")


def valid_rocketmq_topic(topic: str) -> bool:
    """True for a name RocketMQ accepts as a topic (retry and dead-letter ones may be longer) and no light queue has."""
    if topic.startswith(_LIGHT):
        return False
    limit = SYSTEM_TOPIC_CHARS_MAX if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_CHARS_MAX
    return len(topic) <= limit and (_NAME.fullmatch(topic) or _POP_RETRY.fullmatch(topic)) is not None


def valid_group(group: str) -> bool:
    """True for a name RocketMQ accepts as a producer or consumer group."""
    return len(group) <= GROUP_CHARS_MAX and _NAME.fullmatch(group) is not None


def queue_of(key: bytes, queue_count: int) -> int:
    """Return the queue of a key: |Java's String.hashCode(key)| mod `queue_count`.

    As RocketMQ's SelectMessageQueueByHash, so that a Java producer chooses the same queue for a key.
    """
    value = tag_hash(key)
    return abs(value - (value & 0x8000_0000) * 2) % queue_count
