"""What RocketMQ's send requests carry: header fields in the long or the one-letter form, properties, batch bodies.

Codes 310 and 320 name the fields a..n, code 10 spells them out; the C++ client mixes value types. The result is one
plain description per request and one store message per message. Pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from broker.api.fields import flag, number, text
from broker.api.stored_message import BORN_HOST_KEY, FLAG_KEY, RECONSUME_KEY
from broker.store.store_message import StoreMessage
from remoting.protocol.codes import ResponseCode
from remoting.protocol.errors import Refused
from remoting.protocol.record import FLAG_SYS_SHIFT, tag_hash

SHORT_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}
_BATCH_HEAD = struct.Struct(">iiiii")
_LENGTH = struct.Struct(">h")


@dataclass(slots=True)
class SendRequest:
    """One send request, whichever code it came under."""

    group: str
    topic: str
    queue_index: int
    queue_count: int
    system_flag: int
    born_ms: int
    flag: int
    properties: dict[bytes, bytes]
    reconsume_times: int
    reconsume_times_max: int
    batch: bool


def parse_send(fields: Mapping[str, str], *, short: bool) -> SendRequest:
    """The request's fields; `short` says that they have one-letter names.

    Raises:
        Refused: a required field is missing or not a number.
    """
    named = {name: fields[letter] for name, letter in SHORT_NAMES.items() if letter in fields} if short else fields
    return SendRequest(
        group=named.get("producerGroup", ""),
        topic=text(named, "topic"),
        queue_index=number(named, "queueId", -1),
        queue_count=number(named, "defaultTopicQueueNums", 4),
        system_flag=number(named, "sysFlag", 0),
        born_ms=number(named, "bornTimestamp", 0),
        flag=number(named, "flag", 0),
        properties=parse_properties(named.get("properties", "").encode()),
        reconsume_times=number(named, "reconsumeTimes", 0),
        reconsume_times_max=number(named, "maxReconsumeTimes", -1),
        batch=flag(named, "batch"),
    )


def parse_properties(raw: bytes) -> dict[bytes, bytes]:
    """Properties from RocketMQ's text form; a pair without a value is left out."""
    found: dict[bytes, bytes] = {}
    for pair in raw.split(b"\x02"):
        key, separator, value = pair.partition(b"\x01")
        if separator and key:
            found[key] = value
    return found


def split_batch(body: bytes) -> list[tuple[int, dict[bytes, bytes], bytes]]:
    """(flag, properties, body) of each message of a batch body. Refused(MESSAGE_ILLEGAL) when it is malformed."""
    found: list[tuple[int, dict[bytes, bytes], bytes]] = []
    at = 0
    try:
        while at < len(body):
            total, _magic, _crc, message_flag, body_len = _BATCH_HEAD.unpack_from(body, at)
            body_at = at + _BATCH_HEAD.size
            properties_at = body_at + body_len + _LENGTH.size
            (properties_len,) = _LENGTH.unpack_from(body, body_at + body_len)
            if body_len < 0 or properties_len < 0 or properties_at + properties_len != at + total:
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"batch message {len(found)}: its sizes contradict")
            raw = body[properties_at : at + total]
            found.append((message_flag, parse_properties(raw), body[body_at : body_at + body_len]))
            at += total
    except struct.error as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"batch message {len(found)} is cut short") from error
    if not found or at != len(body):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the batch body holds no whole message")
    return found


def build_message(request: SendRequest, topic: str, born_host: bytes, properties: dict[bytes, bytes]) -> StoreMessage:
    """A store message without queues and body; TAGS and KEYS go where our record keeps them."""
    kept = dict(properties)
    tags, keys = kept.pop(b"TAGS", b""), kept.pop(b"KEYS", b"")
    kept[BORN_HOST_KEY] = born_host.hex().encode()
    if request.flag:
        kept[FLAG_KEY] = b"%d" % request.flag
    if request.reconsume_times:
        kept[RECONSUME_KEY] = b"%d" % request.reconsume_times
    parts = [part for pair in kept.items() for part in pair]
    raw = b"".join(parts)
    name = topic.encode()
    try:
        lengths = struct.pack(f"<{len(parts)}H", *map(len, parts))
    except struct.error as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a property is longer than 65,535 bytes") from error
    return StoreMessage(
        queues=(),
        born_ms=request.born_ms,
        flags=(request.system_flag & 0xFFFF) << FLAG_SYS_SHIFT,
        tag_hash=tag_hash(tags) if tags else 0,
        n_props=len(kept),
        topic_len=len(name),
        keys_len=len(keys),
        tags_len=len(tags),
        props_len=len(raw),
        meta=b"".join((lengths, name, keys, tags, raw)),
        body=b"",
    )
