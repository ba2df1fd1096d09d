"""Which keys a record has, and the 32-bit number they are looked up by. Pure.

The keys are the property UNIQ_KEY (not of MQTT messages, whose properties are their devices' own) and what the keys
field holds, separated by spaces. Records in no queue and staged ones have none: no reader may see them. The number is
the CRC32C of topic, a zero byte and key; equal numbers of different keys cost a look at one more record and nothing
else, because whoever looks up compares the record (`has_key`).
Invariant: the compiled twin (`hot.compiled_keys`) finds the same numbers in the same order.
Thread rule: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator

from remoting.native.checksum import crc32c
from remoting.protocol.records.properties import UNIQUE_KEY
from remoting.protocol.records.record import FLAG_MQTT, FLAG_STAGED, RecordView

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
    """Yield the keys a record is found by, the unique key first; a key may come twice."""
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
