"""From our record to RocketMQ's stored-message layout, for clients that pull, and what a sent message keeps for it.

```
i32 total | i32 magic | i32 body crc | i32 queue id | i32 flag | i64 queue offset | i64 position | i32 sys flag
i64 born ms | born host 4 + i32 port | i64 store ms | store host 4 + i32 port | i32 reconsume times
i64 prepared offset | i32 body length, body | topic length (u8, magic v2: u16), topic
i16 properties length, properties (k 01 v 02)
```
Our record has no place for three fields of RocketMQ's: the client's `flag`, the number of reconsumptions and the born
host. A record from a RocketMQ client carries those that are not zero as properties with the prefix `__rmq.`; they are
taken out again here, so no client ever sees them. Pure functions.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from remoting.protocol.record import FLAG_MQTT, FLAG_QOS_MASK, FLAG_SYS_SHIFT, RecordView

MAGIC_V1 = -626_843_481
MAGIC_V2 = -626_843_477
FLAG_KEY = b"__rmq.flag"
RECONSUME_KEY = b"__rmq.reconsume"
BORN_HOST_KEY = b"__rmq.born"
HIDDEN_PREFIX = b"__rmq."
INNER_MULTI_DISPATCH = b"INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = b"INNER_MULTI_QUEUE_OFFSET"
NO_HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
SYS_FLAG_V6_MASK = 0x30
"""Host addresses of 16 bytes; we always write 4, so these bits are cleared."""

_HEAD = struct.Struct(">iiiiiqqiq8sq8siqi")
_HOST = struct.Struct(">4si")
_ID = struct.Struct(">q")


def pack_host(host: str, port: int) -> bytes:
    """An IPv4 address and port as stored; 127.0.0.1 for anything that is not IPv4."""
    try:
        numbers = bytes(int(part) for part in host.split("."))
    except ValueError:
        numbers = b""
    return _HOST.pack(numbers if len(numbers) == 4 else b"\x7f\x00\x00\x01", port)


def offset_message_id(store_host: bytes, position: int) -> str:
    """RocketMQ's message id made of where the message lies: 32 upper-case hex digits."""
    return (store_host + _ID.pack(position)).hex().upper()


def stored_message(view: RecordView, queue_index: int, queue_offset: int, store_host: bytes) -> bytes:
    """One record as a RocketMQ client reads it, seen from the queue it was pulled from."""
    body, topic = view.body, bytes(view.topic)
    born_host, flag, reconsumed = NO_HOST, 0, 0
    properties: list[tuple[bytes, bytes]] = []
    for key, value in view.properties():
        if not key.startswith(HIDDEN_PREFIX):
            properties.append((key, value))
        elif key == FLAG_KEY:
            flag = int(value)
        elif key == RECONSUME_KEY:
            reconsumed = int(value)
        elif key == BORN_HOST_KEY:
            born_host = bytes.fromhex(value.decode())
    text = _properties(view, properties)
    long_topic = len(topic) > 127
    topic_length = struct.pack(">H" if long_topic else ">B", len(topic))
    total = _HEAD.size + len(body) + len(topic_length) + len(topic) + 2 + len(text)
    head = _HEAD.pack(
        total,
        MAGIC_V2 if long_topic else MAGIC_V1,
        zlib.crc32(body) & 0x7FFFFFFF,
        queue_index,
        flag,
        queue_offset,
        view.position,
        (view.flags >> FLAG_SYS_SHIFT) & ~SYS_FLAG_V6_MASK,
        view.born_ms,
        born_host,
        view.store_ms,
        store_host,
        reconsumed,
        0,
        len(body),
    )
    return b"".join((head, body, topic_length, topic, struct.pack(">h", len(text)), text))


def _properties(view: RecordView, properties: Sequence[tuple[bytes, bytes]]) -> bytes:
    """All properties in RocketMQ's text form; what our record keeps elsewhere is added."""
    listed = list(properties)
    if view.flags & FLAG_MQTT:
        listed.append((b"qosLevel", b"%d" % (view.flags & FLAG_QOS_MASK)))
    if view.tags:
        listed.append((b"TAGS", bytes(view.tags)))
    if view.keys:
        listed.append((b"KEYS", bytes(view.keys)))
    if any(key == INNER_MULTI_DISPATCH for key, _value in properties):
        offsets = b",".join(b"%d" % offset for _queue, offset in list(view.dispatch())[1:])
        listed.append((INNER_MULTI_QUEUE_OFFSET, offsets))
    return b"".join([part for key, value in listed for part in (key, b"\x01", value, b"\x02")])
