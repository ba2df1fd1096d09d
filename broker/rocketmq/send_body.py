"""What RocketMQ's send requests carry: header fields in the long or the one-letter form, properties, batch bodies.

Codes 310 and 320 name the fields a..n, code 10 spells them out; the C++ client mixes value types. The result is one
plain description per request and one record image per message. Batch bodies and properties are read by
`remoting.protocol`. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from broker.requests.fields import flag, number, text
from broker.rocketmq.stored_message import BORN_HOST_KEY, FLAG_KEY, HIDDEN_PREFIX, RECONSUME_KEY
from remoting.protocol.bodies.batch_body import decode_batch
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.message_id import HOSTS_KEPT_MAX, Host, pack_host
from remoting.protocol.records.properties import KEYS, PROPERTIES_SIZE_BYTES_MAX, TAGS, decode_properties
from remoting.protocol.records.record import FLAG_SYS_SHIFT

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
NOT_OFFERED_FLAGS = {
    0xC: "transactional messages are not supported by this broker yet",
    0x40: "messages wrapped for another broker (sysFlag 0x40) are not offered by this broker",
    0x80: "inner batches (sysFlag 0x80) are not offered by this broker: send a batch (320)",
}
"""Bits of sysFlag that ask for what would be stored and then not done."""
NOT_OFFERED_PROPERTIES = {
    b"TRAN_MSG": NOT_OFFERED_FLAGS[0xC],
    b"TIMER_DEL_UNIQKEY": "recalling a delayed message is not offered by this broker",
    b"_SYS_MSG_PRIORITY_": "priorities of messages are not offered by this broker",
    b"__LITE_TOPIC": "lite topics are not offered by this broker",
}
"""The same of properties, unless their value is `false`."""
STORED_PROPERTIES_BYTES_MAX = 65_535
"""All properties of one record together; its length field is an unsigned 16-bit number."""


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
        properties=dict(decode_properties(named.get("properties", "").encode())),
        reconsume_times=number(named, "reconsumeTimes", 0),
        reconsume_times_max=number(named, "maxReconsumeTimes", -1),
        batch=flag(named, "batch"),
    )


def split_batch(body: bytes) -> list[tuple[int, dict[bytes, bytes], bytes]]:
    """(flag, properties, body) of each message of a batch body. Refused(MESSAGE_ILLEGAL) when it is malformed."""
    try:
        messages = decode_batch(body)
    except RemoteViolation as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, error.reason) from error
    if not messages:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the batch body holds no whole message")
    return [(message.flag, dict(message.properties), message.body) for message in messages]


def check_flags(system_flag: int) -> None:
    """Refused(MESSAGE_ILLEGAL) for a sysFlag that asks for what this broker does not do."""
    for bits, remark in NOT_OFFERED_FLAGS.items():
        if system_flag & bits:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)


def check_properties(properties: Mapping[bytes, bytes]) -> None:
    """Refused(MESSAGE_ILLEGAL) for properties that ask for what this broker does not do, that are too long to be shown
    again, or that use our hidden names."""
    if not NOT_OFFERED_PROPERTIES.keys().isdisjoint(properties):
        for key, remark in NOT_OFFERED_PROPERTIES.items():
            if properties.get(key, b"false") != b"false":
                raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
    if any(key.startswith(HIDDEN_PREFIX) for key in properties):
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"names of properties may not begin with {HIDDEN_PREFIX.decode()}")
    size = sum(len(key) + len(value) + 2 for key, value in properties.items())
    if size > PROPERTIES_SIZE_BYTES_MAX:
        remark = f"properties of {size} bytes, the limit is {PROPERTIES_SIZE_BYTES_MAX}"
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)


@lru_cache(HOSTS_KEPT_MAX)
def _born(host: Host) -> bytes:
    return pack_host(host).hex().encode()


def build_image(
    request: SendRequest,
    topic: str,
    queue_index: int,
    born_host: Host,
    properties: dict[bytes, bytes],
    body: bytes | memoryview,
) -> bytes:
    """The record image of one message of the request; TAGS and KEYS go where our record keeps them."""
    kept = dict(properties)
    tags, keys = kept.pop(TAGS, b""), kept.pop(KEYS, b"")
    kept[BORN_HOST_KEY] = _born(born_host)
    if request.flag:
        kept[FLAG_KEY] = b"%d" % request.flag
    if request.reconsume_times:
        kept[RECONSUME_KEY] = b"%d" % request.reconsume_times
    size = sum(map(len, kept)) + sum(map(len, kept.values()))
    if size > STORED_PROPERTIES_BYTES_MAX:
        remark = f"properties of {size} bytes, the limit is {STORED_PROPERTIES_BYTES_MAX}"
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
    return encode_image(
        flags=(request.system_flag & 0xFFFF) << FLAG_SYS_SHIFT,
        born_ms=request.born_ms,
        topic=topic.encode(),
        queue_index=queue_index,
        keys=keys,
        tags=tags,
        properties=list(kept.items()),
        body=body,
    )
