"""A record in RocketMQ's form: what its clients read of one, and what they send: messages and batches of them.

The layout itself is `stored_message`. Our record has no room for three fields of RocketMQ's: the client's `flag`, the
number of reconsumptions and the born host. An image of a RocketMQ client's message carries those that are not zero as
properties with the prefix `__rmq.`; they are removed again here, so no client ever sees them. TAGS and KEYS have fields
of their own in the record and are properties again for the reader.

What RocketMQ's broker writes into every message (`Origin`: region, trace switch, cluster) is added for the reader and
takes no space in the log, and so is what a client needs to answer a request of an MQTT client:

    Response Topic                         REPLY_TO_CLIENT = `mqtt:` + Response Topic
    Correlation Data, may be absent        CORRELATION_ID = Correlation Data in base64, `-` when absent
    Message Expiry Interval                TTL, in ms

The body of SEND_BATCH_MESSAGE has messages of one topic and queue back to back; topic, queue and sysFlag stand in the
request's fields and apply to all. Big-endian:

    n x { i32 total | i32 magic 0 | i32 body crc 0 | i32 flag | i32 length, body | i16 length, properties }

Invariant: every record can be converted, whatever its source, because one that cannot would stop a consumer
permanently: bytes reserved in RocketMQ's text form of properties (01, 02) become `?`, a property that would exceed the
size limit is left out, malformed hidden properties count as absent. Thread rule: pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain

import msgspec

from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.properties import (
    CORRELATION_DATA,
    KEYS,
    PROPERTIES_SIZE_BYTES_MAX,
    RESPONSE_TOPIC,
    TAGS,
    decode_properties,
    encode_properties,
    expiry_of,
)
from remoting.protocol.records.record import FLAG_MQTT, FLAG_QOS_MASK, FLAG_SYS_SHIFT, Buffer, RecordView
from remoting.protocol.records.stored_message import HOSTS_KEPT_MAX, Host, encode_stored, from_record, unpack_host

HIDDEN_PREFIX = b"__rmq."
FLAG_KEY = b"__rmq.flag"
RECONSUME_KEY = b"__rmq.reconsume"
BORN_HOST_KEY = b"__rmq.born"
FIRST_POP_TIME = b"1ST_POP_TIME"
"""Property of a message that a group has popped: when it did for the first time."""
INNER_MULTI_DISPATCH = b"INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = b"INNER_MULTI_QUEUE_OFFSET"
NO_HOST: Host = ("127.0.0.1", 0)

Origin = tuple[tuple[bytes, bytes], ...]
"""Properties added to every message; consumers need them to trace, and to answer a request."""
MSG_REGION, TRACE_ON, CLUSTER = b"MSG_REGION", b"TRACE_ON", b"CLUSTER"
ORIGIN_KEYS = frozenset((MSG_REGION, TRACE_ON, CLUSTER))
"""Values that another broker set on a forwarded message are replaced."""

REPLY_TO_CLIENT, CORRELATION_ID, TTL = b"REPLY_TO_CLIENT", b"CORRELATION_ID", b"TTL"
MQTT_SENDER = b"mqtt:"
"""What REPLY_TO_CLIENT of a request from MQTT begins with."""
NO_CORRELATION = b"-"
"""CORRELATION_ID of a request without Correlation Data; no base64."""
TTL_MS_DEFAULT = 3_000
"""TTL of a request that does not expire; RocketMQ's clients use it for messages of logs alone."""
QOS_KEY = b"qosLevel"

_SHOWN = bytes.maketrans(b"\x01\x02", b"??")
_INT_MAX = 2**31


def stored_message(
    view: RecordView, queue_index: int, queue_offset: int, store_host: Host, origin: Origin = ()
) -> bytes:
    """One record as a RocketMQ client reads it, seen from the queue it was pulled from."""
    message = from_record(
        view, queue_id=queue_index, queue_offset=queue_offset, born_host=NO_HOST, store_host=store_host
    )
    shown: list[tuple[bytes, bytes]] = []
    replaced = ORIGIN_KEYS if origin else frozenset()
    multi_dispatch = asks = False
    for key, value in message.properties:
        if not key.startswith(HIDDEN_PREFIX):
            if key not in replaced:
                shown.append((key, value))
            multi_dispatch = multi_dispatch or key == INNER_MULTI_DISPATCH
            asks = asks or key == RESPONSE_TOPIC
        elif key == FLAG_KEY:
            message.flag = _number(value)
        elif key == RECONSUME_KEY:
            message.reconsume_times = _number(value)
        elif key == BORN_HOST_KEY:
            message.born_host = _host(value)
    if view.flags & FLAG_MQTT:
        shown.append((QOS_KEY, b"%d" % (view.flags & FLAG_QOS_MASK)))
    if multi_dispatch:
        offsets = b",".join(b"%d" % offset for _queue, offset in view.dispatch()[1:])
        shown.append((INNER_MULTI_QUEUE_OFFSET, offsets))
    if asks:
        shown += request_pairs(message.properties)
    shown += origin
    message.properties = _that_fit(shown)
    return encode_stored(message)


def request_pairs(properties: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """What a RocketMQ client reads in addition in a request of an MQTT client; empty for any other message."""
    known = dict(properties)
    target = known.get(RESPONSE_TOPIC)
    if not target or REPLY_TO_CLIENT in known:
        return []
    expiry_s = expiry_of(known.items())
    ttl_ms = TTL_MS_DEFAULT if expiry_s is None else expiry_s * 1_000
    return [
        (REPLY_TO_CLIENT, MQTT_SENDER + target),
        (CORRELATION_ID, known.get(CORRELATION_DATA) or NO_CORRELATION),
        (TTL, b"%d" % ttl_ms),
    ]


def _that_fit(pairs: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    text = b"".join(chain.from_iterable(pairs))
    if len(text) + 2 * len(pairs) <= PROPERTIES_SIZE_BYTES_MAX and b"\x01" not in text and b"\x02" not in text:
        return pairs  # the usual case
    found: list[tuple[bytes, bytes]] = []
    left = PROPERTIES_SIZE_BYTES_MAX
    for key, value in pairs:
        size = len(key) + len(value) + 2
        if size <= left:
            found.append((key.translate(_SHOWN), value.translate(_SHOWN)))
            left -= size
    return found


def _number(value: bytes) -> int:
    try:
        number = int(value)
    except ValueError:
        return 0
    return number if -_INT_MAX <= number < _INT_MAX else 0


@lru_cache(HOSTS_KEPT_MAX)
def _host(value: bytes) -> Host:
    try:
        return unpack_host(bytes.fromhex(value.decode()))
    except (ValueError, RemoteViolation):
        return NO_HOST


class SentFields(msgspec.Struct):
    """What all messages of one send request have in common."""

    topic: bytes
    queue_index: int
    system_flag: int
    born_ms: int
    born_host: bytes
    """The packed host in hex."""
    reconsume_times: int = 0


def sent_image(fields: SentFields, flag: int, properties: Mapping[bytes, bytes], body: Buffer) -> bytes:
    """The record image of one message of a request; TAGS and KEYS go where our record keeps them."""
    kept = dict(properties)
    tags, keys = kept.pop(TAGS, b""), kept.pop(KEYS, b"")
    kept[BORN_HOST_KEY] = fields.born_host
    if flag:
        kept[FLAG_KEY] = b"%d" % flag
    if fields.reconsume_times:
        kept[RECONSUME_KEY] = b"%d" % fields.reconsume_times
    return encode_image(
        flags=(fields.system_flag & 0xFFFF) << FLAG_SYS_SHIFT,
        born_ms=fields.born_ms,
        topic=fields.topic,
        queue_index=fields.queue_index,
        keys=keys,
        tags=tags,
        properties=list(kept.items()),
        body=body,
    )


_HEAD = struct.Struct(">iiiii")
_LENGTH = struct.Struct(">h")


class BatchMessage(msgspec.Struct):
    """One message of a batch; `flag` is the client's own number, kept unchanged."""

    body: bytes
    properties: list[tuple[bytes, bytes]] = []
    flag: int = 0


def encode_batch(messages: Sequence[BatchMessage]) -> bytes:
    """Return the batch body; LocalMisuse if a part does not fit."""
    return b"".join(batch_part(each.body, encode_properties(each.properties), each.flag) for each in messages)


def batch_part(body: bytes, properties: bytes, flag: int = 0) -> bytes:
    """Return one message of a batch body, its properties in their text form; LocalMisuse if a part does not fit."""
    total = _HEAD.size + len(body) + _LENGTH.size + len(properties)
    try:
        head, length = _HEAD.pack(total, 0, 0, flag, len(body)), _LENGTH.pack(len(properties))
    except struct.error as error:
        raise LocalMisuse(f"a message of the batch does not fit: {error}") from error
    return b"".join((head, body, length, properties))


def decode_batch(body: bytes) -> list[BatchMessage]:
    """Return the messages of a batch body; RemoteViolation names the first malformed one."""
    messages: list[BatchMessage] = []
    at = 0
    try:
        while at < len(body):
            total, _, _, flag, body_len = _HEAD.unpack_from(body, at)
            text_at = at + _HEAD.size + body_len
            if body_len < 0 or text_at < at:
                raise RemoteViolation(f"batch message {len(messages)}: a body of {body_len} bytes")
            (text_len,) = _LENGTH.unpack_from(body, text_at)
            end = text_at + _LENGTH.size + text_len
            if text_len < 0 or end != at + total or end > len(body):
                raise RemoteViolation(f"batch message {len(messages)}: sizes contradict each other")
            text = body[text_at + _LENGTH.size : end]
            messages.append(BatchMessage(body[at + _HEAD.size : text_at], decode_properties(text), flag))
            at = end
    except struct.error as error:
        raise RemoteViolation(f"batch message {len(messages)} is cut short") from error
    return messages
