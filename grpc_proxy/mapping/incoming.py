"""From a stored message of the broker to a client's message, with its receipt handle.

A receipt handle is RocketMQ's: what POP_CK has in the remoting protocol, and the message's position in the log.

    ckQueueOffset popTime invisibleTime reviveQueue retry broker queueId queueOffset commitLogOffset

`retry` is 0 for the topic itself and 2 for the group's retry topic. GrpcClients verify the MD5 digest of the body.
Invariant: `parse_handle(handle_of(x))` has the parts of x; properties that RocketMQ gives a meaning do not appear among
the user's. Pure.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from grpc_proxy.mapping.outgoing import DELIVER_MS, LITE_TOPIC, PRIORITY, SHARDING_KEY, TRACE_CONTEXT, is_system
from grpc_proxy.mapping.statuses import CallRejected, Code
from grpc_proxy.mapping.values import duration, resource, timestamp
from grpc_proxy.stubs import definition
from remoting.protocol.records import names
from remoting.protocol.records.stored_message import StoredMessage, offset_message_id

COMPRESSED, COMPRESSION_MASK, ZLIB = 0x1, 0x700, (0, 0x300)
"""Bits of sysFlag: the body is compressed, by what; the kinds that are zlib."""
BODY_BYTES_MAX = 32 * 1024 * 1024
"""Largest body that is decompressed; a larger one is passed on as it is stored."""
TOPIC_MARK, RETRY_MARK = "0", "2"
HANDLE_PARTS = 9
NUMBER_DIGITS_MAX = 18
ORDER_WORDS = 3
PRIORITY_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ReceiptHandle:
    """What names one ownership of one message; its text is what clients get."""

    pop_ms: int
    invisible_ms: int
    is_retry: bool
    broker: str
    queue_index: int
    offset: int
    position: int
    """The message's position in the log."""
    lite_topic: str = ""
    """Of a message of a lite topic; clients repeat it beside the handle."""

    def __str__(self) -> str:
        mark = RETRY_MARK if self.is_retry else TOPIC_MARK
        return (
            f"{self.offset} {self.pop_ms} {self.invisible_ms} 0 {mark} {self.broker} "
            f"{self.queue_index} {self.offset} {self.position}"
        )

    def topic(self, group: str, topic: str) -> str:
        """Return the name of the topic whose queue has the message."""
        return f"{names.RETRY_PREFIX}{group}+{topic}" if self.is_retry else topic

    def fields(self, group: str, topic: str) -> dict[str, str]:
        """Return what ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME name the message by."""
        fields = {
            "consumerGroup": group, "topic": self.topic(group, topic), "queueId": str(self.queue_index),
            "offset": str(self.offset), "extraInfo": str(self),
        }  # fmt: skip
        return {**fields, "liteTopic": self.lite_topic} if self.lite_topic else fields


def parse_handle(text: str, lite_topic: str = "") -> ReceiptHandle:
    """Return the parts of a receipt handle. CallRejected(INVALID_RECEIPT_HANDLE) when it is malformed."""
    parts = text.split(" ")
    numbers = [*parts[:4], *parts[6:]]
    is_whole = len(parts) == HANDLE_PARTS and parts[4] in (TOPIC_MARK, RETRY_MARK)
    if not is_whole or not all(map(_is_number, numbers)):
        raise CallRejected(Code.INVALID_RECEIPT_HANDLE, "the receipt handle is malformed")
    pop_ms, invisible_ms, index, offset, position = (int(parts[at]) for at in (1, 2, 6, 7, 8))
    return ReceiptHandle(pop_ms, invisible_ms, parts[4] == RETRY_MARK, parts[5], index, offset, position, lite_topic)


def handle_of(
    stored: StoredMessage, broker: str, pop_ms: int, invisible_ms: int, lite_topic: str = ""
) -> ReceiptHandle:
    """Return the handle of a message that was popped."""
    is_retry = stored.topic.decode("utf-8", "replace").startswith(names.RETRY_PREFIX)
    place = stored.queue_id, stored.queue_offset, stored.position
    return ReceiptHandle(pop_ms, invisible_ms, is_retry, broker, *place, lite_topic)


def deliveries_before(order_count_info: str) -> dict[tuple[int, int], int]:
    """Return (queue, offset) -> how often it was delivered before, from the answer to a POP in order."""
    found = {}
    for part in filter(None, order_count_info.split(";")):
        words = part.split(" ")
        if len(words) == ORDER_WORDS and words[1].startswith("qo"):
            queue, _, offset = words[1].removeprefix("qo").partition("%")
            found[int(queue), int(offset)] = int(words[2])
    return found


def lite_deliveries_before(order_count_info: str) -> list[int]:
    """Return how often each message was delivered before, in their order, from the answer to a POP of lite topics."""
    return [int(part) for part in order_count_info.split(";") if part.isdigit()]


def incoming(stored: StoredMessage, body: bytes, topic: str, namespace: str) -> Any:
    """Return a stored message with its plain body as a client of this namespace gets it, without a receipt handle."""
    properties = {key.decode("utf-8", "replace"): text for key, text in stored.properties}
    message = definition.Message(
        topic=resource(topic, namespace),
        user_properties=dict(_users(stored.properties)),
        body=body,
    )
    system = message.system_properties
    system.message_id = _text(properties, "UNIQ_KEY") or offset_message_id(stored.store_host, stored.position)
    system.body_digest.type = definition.DigestType.MD5
    system.body_digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = definition.Encoding.IDENTITY
    system.born_timestamp.CopyFrom(timestamp(stored.born_ms))
    system.born_host, system.store_host = stored.born_host[0], stored.store_host[0]
    system.store_timestamp.CopyFrom(timestamp(stored.store_ms))
    system.queue_id, system.queue_offset = stored.queue_id, stored.queue_offset
    system.delivery_attempt = stored.reconsume_times + 1
    _optional(system, properties)
    return message


def _optional(system: Any, properties: dict[str, bytes]) -> None:
    kinds = definition.MessageType
    system.message_type = kinds.NORMAL
    if tag := _text(properties, "TAGS"):
        system.tag = tag
    system.keys.extend(_text(properties, "KEYS").split())
    if trace := _text(properties, TRACE_CONTEXT):
        system.trace_context = trace
    if group := _text(properties, SHARDING_KEY):
        system.message_group, system.message_type = group, kinds.FIFO
    if (due := _text(properties, DELIVER_MS)).isdigit():
        system.delivery_timestamp.CopyFrom(timestamp(int(due)))
        system.message_type = kinds.DELAY
    if (priority := _text(properties, PRIORITY)).isdigit():
        system.priority, system.message_type = min(int(priority), PRIORITY_MAX), kinds.PRIORITY
    if lite_topic := _text(properties, LITE_TOPIC):
        system.lite_topic, system.message_type = lite_topic, kinds.LITE
    topic, message_id = _text(properties, "DLQ_ORIGIN_TOPIC"), _text(properties, "DLQ_ORIGIN_MESSAGE_ID")
    if topic and message_id:
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = topic, message_id
    if _text(properties, "TRAN_MSG") == "true":
        system.message_type = kinds.TRANSACTION


def owned(message: Any, handle: ReceiptHandle, invisible_ms: int) -> Any:
    """Put the handle of its present ownership, and its time, into a message."""
    message.system_properties.receipt_handle = str(handle)
    message.system_properties.invisible_duration.CopyFrom(duration(invisible_ms))
    return message


def plain_body(stored: StoredMessage) -> tuple[bytes, bool]:
    """Return the body as it was before its producer compressed it, and whether that was possible: with zlib only."""
    flags, body = stored.sys_flag, bytes(stored.body)
    if not flags & COMPRESSED:
        return body, True
    if flags & COMPRESSION_MASK not in ZLIB:
        return body, False
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(body, BODY_BYTES_MAX)
    except zlib.error:
        return body, False
    return (plain, True) if inflate.eof else (body, False)


def _users(properties: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, str]]:
    for key, text in properties:
        if not is_system(key):
            yield key.decode("utf-8", "replace"), text.decode("utf-8", "replace")


def _text(properties: dict[str, bytes], name: str) -> str:
    return properties.get(name, b"").decode("utf-8", "replace")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX
