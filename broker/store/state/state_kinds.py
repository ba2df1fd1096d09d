"""The kinds of durable state, as numbers in control records, and the body of such a record: a batch of changes.

    u32 count | count x { u16 kind | u8 operation (0 set, 1 delete) | u8 zero | u32 key_len | u32 value_len
                          | key | value }

Invariants: a number never changes its meaning and is never reused; decode(encode(changes)) == changes; the changes of
a record are applied as one. Thread rule: constants and pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remoting.protocol.errors import CorruptRecord

QUEUE = 1
"""Queue name -> id and the next offset it had when the record was written; the empty name holds the next free id."""
TOPIC = 2
GROUP_OFFSET = 3
SESSION = 4
SESSION_OFFSET = 5
RETAINED = 6
"""MQTT topic -> empty value; the position is that of the message record itself."""
FILTER = 7
LEDGER = 8
GROUP = 9
WILL = 10
RETENTION = 11
"""Group of queues with a retention of its own -> log position (i64) below which its queues show nothing."""
SESSION_INFLIGHT = 12
"""Client id and block of packet ids -> QoS 2 deliveries whose handshake is not over."""
SESSION_RECEIVED = 13
"""Client id and block of packet ids -> QoS 2 publishes taken and not released."""
LOG_BEGIN = 14
"""Empty key -> log position (i64): a group's master deletes the log below; what is still valid was carried forward."""
SHARED = 20
"""Shared subscription (whole filter) -> its queue and how far its group has come."""
DELAYED = 21
"""Start (ms) of a span of time -> which of the messages that waited in it were delivered, and where the rest begin;
start/offset -> the message waiting there was recalled (empty) or waits for another time now (M)."""
TRANSACTION = 22
"""Offset of a half message -> how its transaction ended; `floor` -> the offset below which all have."""
CHECK_POINT = 23
"""Consumer group, queue id and block of offsets -> which of these messages the group has by POP, and until when."""
REQUEST_MODE = 24
"""Consumer group and topic -> whether the group pulls or pops the topic."""
QUEUE_LOCK = 25
"""Group, topic and queue index -> fencing token and client id of the consumer that has locked the queue."""
ORDERED_BATCH = 26
"""Consumer group and queue id -> the messages that the group has of the queue by POP in order, and by which attempt."""
LITE_BATCH = 27
"""The same for lite topics."""
ACCESS = 30
"""`user/` or `acl/` and a user's name -> the user, or its rules, as requests made them."""
MIGRATION = 31
"""Source queue, queue id and source offset -> where the messages copied from there on are in the queue."""
MIGRATION_RETURN = 33
"""Source queue, queue id and source offset -> where the messages are in the queue that were mirrored back to there."""
AUDITED = 34
"""Offset (u64, big-endian) in the queue of administrative acts -> the act, once that part of the queue has expired."""
MASTER_EPOCH = 35
"""Only ever deleted, with an empty key: a record that changes nothing. The first one of a master that its group elected
by itself, and one of any master that proves to be the only one."""
LOG_IDENTITY = 36
"""Empty key -> 16 random bytes, written once by the first master that finds none: which log this is."""
OPTION = 32
"""Key of an option, as below `broker` in the configuration -> its value as text, changed at run time."""

RECORDS_VERSION = 1
"""What FORMAT says of the records of a log; raised with every new kind of state, every new type or flag of a record,
and every new meaning of an old one, so that no release opens a log of which it would overlook something; the version of
replication is raised with it. 1: the identity of the log, what a sink's last batch was, recalled and rescheduled
messages, a message in several records."""
NAMES = {
    QUEUE: "queue",
    TOPIC: "topic",
    GROUP_OFFSET: "group_offset",
    SESSION: "session",
    SESSION_OFFSET: "session_offset",
    RETAINED: "retained",
    FILTER: "filter",
    LEDGER: "ledger",
    GROUP: "group",
    WILL: "will",
    RETENTION: "retention",
    SESSION_INFLIGHT: "session_inflight",
    SESSION_RECEIVED: "session_received",
    LOG_BEGIN: "log_begin",
    SHARED: "shared",
    DELAYED: "delayed",
    TRANSACTION: "transaction",
    CHECK_POINT: "check_point",
    REQUEST_MODE: "request_mode",
    QUEUE_LOCK: "queue_lock",
    ORDERED_BATCH: "ordered_batch",
    LITE_BATCH: "lite_batch",
    ACCESS: "access",
    MIGRATION: "migration",
    MIGRATION_RETURN: "migration_return",
    OPTION: "option",
    AUDITED: "audited",
    MASTER_EPOCH: "master_epoch",
    LOG_IDENTITY: "log_identity",
}


_COUNT = struct.Struct("<I")
_CHANGE = struct.Struct("<HBBII")
BATCH_BYTES_MAX = 1024 * 1024
"""A control record is closed once its body reaches this size; the rest goes to the next record of the same group."""


@dataclass(slots=True)
class StateChange:
    """Set `key` of `kind` to `value`; None deletes it."""

    kind: int
    key: bytes
    value: bytes | None


def encode_changes(changes: Sequence[StateChange]) -> bytes:
    """Return the body of one control record."""
    parts = [_COUNT.pack(len(changes))]
    for change in changes:
        value = change.value
        operation, data = (1, b"") if value is None else (0, value)
        parts += (_CHANGE.pack(change.kind, operation, 0, len(change.key), len(data)), change.key, data)
    return b"".join(parts)


def decode_changes(body: bytes | memoryview) -> Iterator[StateChange]:
    """Yield the changes of a control record. Raises CorruptRecord when the body contradicts itself."""
    body = bytes(body)
    try:
        (count,) = _COUNT.unpack_from(body, 0)
        at = _COUNT.size
        for _ in range(count):
            kind, operation, _, key_len, value_len = _CHANGE.unpack_from(body, at)
            key_at = at + _CHANGE.size
            value_at = key_at + key_len
            at = value_at + value_len
            if at > len(body):
                raise CorruptRecord(f"state change passes the {len(body)} bytes of its record")
            yield StateChange(kind, body[key_at:value_at], None if operation else body[value_at:at])
    except struct.error as error:
        raise CorruptRecord(f"state batch of {len(body)} bytes is cut short") from error
    if at != len(body):
        raise CorruptRecord(f"{len(body) - at} bytes behind the last state change")


def split_batches(changes: Sequence[StateChange], bytes_max: int = BATCH_BYTES_MAX) -> Iterator[Sequence[StateChange]]:
    """Cut `changes` into runs whose bodies stay near `bytes_max`, in order."""
    first = size = 0
    for at, change in enumerate(changes):
        grown = _CHANGE.size + len(change.key) + len(change.value or b"")
        if at > first and size + grown > bytes_max:
            yield changes[first:at]
            first, size = at, 0
        size += grown
    if first < len(changes):
        yield changes[first:]
