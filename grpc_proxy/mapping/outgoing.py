"""From a client's message to the send request of the remoting protocol.

    tag, keys                      properties TAGS, KEYS (joined by spaces)
    message_id                     UNIQ_KEY
    message_group                  __SHARDINGKEY; one group, one queue
    delivery_timestamp             TIMER_DELIVER_MS
    priority                       _SYS_MSG_PRIORITY_
    lite_topic                     __LITE_TOPIC
    trace_context                  TRACE_CONTEXT
    type TRANSACTION               TRAN_MSG, PGROUP, sysFlag 4; producers have no group here: it is the topic's name

A type that its other properties contradict is rejected, as is any value that the text form of properties cannot hold.
Messages that follow each other and differ in nothing that a batch has only once (born time, message group) are one
batch for the broker.
Invariant: a message is passed on whole or rejected with the code of its first fault. Pure.
"""

from __future__ import annotations

import binascii
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from grpc_proxy.mapping.statuses import CallRejected, Code
from grpc_proxy.mapping.values import checked_lite_topic, ms_of, topic_of
from grpc_proxy.stubs import definition
from remoting.protocol.records.properties import RESERVED, encode_properties
from remoting.protocol.records.record import MQTT_TOPIC_KEY
from remoting.protocol.records.rocketmq_form import batch_part

Type = definition.MessageType
SHARDING_KEY, TRACE_CONTEXT, DELIVER_MS = "__SHARDINGKEY", "TRACE_CONTEXT", "TIMER_DELIVER_MS"
PRIORITY, LITE_TOPIC = "_SYS_MSG_PRIORITY_", "__LITE_TOPIC"
CHECK_AFTER_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_FLAG = 0x4
TIME_MS_MAX = 2**53
BATCH_BYTES_MAX = 1024 * 1024
"""Most bytes of a batch's messages; a larger message goes alone."""
BATCHED_PROPERTIES_BYTES_MAX = 32_767
"""Most bytes of a message's properties in a batch, whose layout has a signed 16-bit length."""
_SYSTEM = {PRIORITY.encode(), LITE_TOPIC.encode()}
_SEPARATORS = ("\x01", "\x02")


class Limits(Protocol):
    """What a message may have; see the configuration."""

    @property
    def body_bytes_max(self) -> int:
        """See the configuration."""

    @property
    def properties_max(self) -> int:
        """See the configuration."""

    @property
    def properties_bytes_max(self) -> int:
        """See the configuration."""

    @property
    def message_group_chars_max(self) -> int:
        """See the configuration."""

    @property
    def lite_topic_chars_max(self) -> int:
        """See the configuration."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message for the broker."""

    topic: str
    type: int
    message_id: str
    properties: str
    body: bytes
    born_ms: int
    message_group: str = ""
    lite_topic: str = ""

    @property
    def size_bytes(self) -> int:
        """The bytes of its body and its properties."""
        return len(self.body) + len(self.properties.encode())

    @property
    def fits_batch(self) -> bool:
        """Whether the broker takes it in a batch: it is only to be stored, at once."""
        is_plain = self.type in (Type.NORMAL, Type.FIFO) and MQTT_TOPIC_KEY.decode() not in self.properties
        return is_plain and len(self.properties.encode()) <= BATCHED_PROPERTIES_BYTES_MAX

    def fields(self, queue_index: int) -> dict[str, str]:
        """Return the fields of SEND_MESSAGE_V2 for this queue; -1: the broker chooses one."""
        flags = TRANSACTION_FLAG if self.type == Type.TRANSACTION else 0
        return {
            "a": self.topic, "b": self.topic, "c": "TBW102", "d": "4", "e": str(queue_index), "f": str(flags),
            "g": str(self.born_ms), "h": "0", "i": self.properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip


def batches(messages: Sequence[OutgoingMessage]) -> list[list[OutgoingMessage]]:
    """Return the messages in their order, those together that one request can take."""
    found: list[list[OutgoingMessage]] = []
    size_bytes = 0
    for message in messages:
        last = found[-1][-1] if found else None
        size_bytes += message.size_bytes
        joins = (
            last is not None
            and (last.born_ms, last.message_group) == (message.born_ms, message.message_group)
            and last.fits_batch
            and message.fits_batch
            and size_bytes <= BATCH_BYTES_MAX
        )
        if joins:
            found[-1].append(message)
        else:
            found.append([message])
            size_bytes = message.size_bytes
    return found


def batch_request(batch: Sequence[OutgoingMessage], queue_index: int) -> tuple[dict[str, str], bytes]:
    """Return the fields and the body of SEND_BATCH_MESSAGE."""
    body = b"".join(batch_part(each.body, each.properties.encode()) for each in batch)
    return {**batch[0].fields(queue_index), "i": "", "m": "true"}, body


def outgoing(message: Any, limits: Limits, now_ms: int) -> OutgoingMessage:
    """Return a client's message for the broker. CallRejected with the code of its first fault."""
    system, topic = message.system_properties, topic_of(message.topic)
    kind = type_of(system)
    if not system.message_id:
        raise CallRejected(Code.ILLEGAL_MESSAGE_ID, "the message has no id")
    properties = {**_user_properties(message.user_properties, limits), **_system_properties(system, kind, limits)}
    if kind == Type.LITE:
        properties[LITE_TOPIC] = checked_lite_topic(topic, system.lite_topic, limits.lite_topic_chars_max)
    if kind == Type.TRANSACTION:
        properties |= {"TRAN_MSG": "true", "PGROUP": topic}
    if any(separator in text for text in properties.values() for separator in _SEPARATORS):
        raise CallRejected(Code.BAD_REQUEST, "a property holds one of the characters 0x01 and 0x02")
    pairs = [(name.encode(), text.encode()) for name, text in properties.items()]
    return OutgoingMessage(
        topic=topic,
        type=kind,
        message_id=system.message_id,
        properties=encode_properties(pairs).decode(),
        body=_body(message, limits.body_bytes_max),
        born_ms=ms_of(system.born_timestamp) if 0 < ms_of(system.born_timestamp) < TIME_MS_MAX else now_ms,
        message_group=system.message_group,
        lite_topic=system.lite_topic,
    )


def type_of(system: Any) -> int:
    """Return the type that the properties of a message make it. CallRejected when they contradict each other."""
    marks = {
        Type.FIFO: system.HasField("message_group"),
        Type.DELAY: system.HasField("delivery_timestamp"),
        Type.TRANSACTION: system.message_type == Type.TRANSACTION,
        Type.LITE: system.HasField("lite_topic"),
        Type.PRIORITY: system.HasField("priority"),
    }
    found = [kind for kind, is_marked in marks.items() if is_marked] or [Type.NORMAL]
    declared = system.message_type or found[0]
    if found != [declared]:
        names = ", ".join(Type.Name(kind) for kind in found)
        text = f"the message is declared {Type.Name(declared)}, and its properties make it {names}"
        raise CallRejected(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
    return int(declared)


def is_system(name: bytes) -> bool:
    """Whether a property has a meaning to RocketMQ, so that it is not one of the user's."""
    return name in RESERVED or name in _SYSTEM


def _user_properties(given: Mapping[str, str], limits: Limits) -> dict[str, str]:
    size = sum(len(name.encode()) + len(text.encode()) for name, text in given.items())
    if len(given) > limits.properties_max or size > limits.properties_bytes_max:
        text = (
            f"{len(given)} properties of {size} bytes; {limits.properties_max} of {limits.properties_bytes_max} may be"
        )
        raise CallRejected(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    for name in given:
        if not name or is_system(name.encode()) or any(separator in name for separator in _SEPARATORS):
            raise CallRejected(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"a property may not be called {name[:64]!r}")
    return dict(given)


def _system_properties(system: Any, kind: int, limits: Limits) -> dict[str, str]:
    properties = {"UNIQ_KEY": system.message_id}
    if system.HasField("tag"):
        properties["TAGS"] = _tag(system.tag)
    if system.keys:
        properties["KEYS"] = _keys(system.keys)
    if kind == Type.FIFO:
        properties[SHARDING_KEY] = _message_group(system.message_group, limits.message_group_chars_max)
    if kind == Type.DELAY:
        properties[DELIVER_MS] = str(_delivery_ms(system.delivery_timestamp))
    if kind == Type.PRIORITY:
        properties[PRIORITY] = _priority(system.priority)
    if system.HasField("trace_context"):
        properties[TRACE_CONTEXT] = system.trace_context
    if kind == Type.TRANSACTION and system.HasField("orphaned_transaction_recovery_duration"):
        properties[CHECK_AFTER_S] = str(max(0, ms_of(system.orphaned_transaction_recovery_duration) // 1_000))
    return properties


def _tag(tag: str) -> str:
    if not tag.strip() or "|" in tag or not tag.isprintable():
        raise CallRejected(
            Code.ILLEGAL_MESSAGE_TAG, f"the tag {tag[:64]!r} is empty or has a character that no tag has"
        )
    return tag


def _keys(keys: Any) -> str:
    for key in keys:
        if not key.strip() or not key.isprintable():
            raise CallRejected(Code.ILLEGAL_MESSAGE_KEY, f"the key {key[:64]!r} is empty or has control characters")
    return " ".join(keys)


def _message_group(group: str, chars_max: int) -> str:
    if not group.strip() or len(group) > chars_max or not group.isprintable():
        text = f"the message group {group[:64]!r} is not 1 to {chars_max} printable characters"
        raise CallRejected(Code.ILLEGAL_MESSAGE_GROUP, text)
    return group


def _priority(priority: int) -> str:
    if priority < 0:
        raise CallRejected(Code.BAD_REQUEST, f"the priority {priority} is negative")
    return str(priority)


def _delivery_ms(at: Any) -> int:
    due_ms = ms_of(at)
    if not 0 < due_ms < TIME_MS_MAX or not 0 <= at.nanos < 1_000_000_000:
        raise CallRejected(Code.ILLEGAL_DELIVERY_TIME, f"the delivery time {due_ms} ms is no time since 1970")
    return due_ms


def _body(message: Any, size_max: int) -> bytes:
    """Return the body as consumers get it: decompressed and, where the client sent a digest, intact."""
    system, body = message.system_properties, bytes(message.body)
    if len(body) > size_max:
        raise _too_large(size_max)
    if system.HasField("body_digest"):
        _check_digest(system.body_digest, body)
    if system.body_encoding != definition.Encoding.GZIP:
        return body
    inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        plain = inflate.decompress(body, size_max + 1)
    except zlib.error as error:
        raise CallRejected(Code.MESSAGE_CORRUPTED, f"the body cannot be decompressed: {error}") from error
    if len(plain) > size_max:
        raise _too_large(size_max)
    if not inflate.eof:
        raise CallRejected(Code.MESSAGE_CORRUPTED, "the compressed body is cut short")
    return plain


def _too_large(size_max: int) -> CallRejected:
    return CallRejected(Code.MESSAGE_BODY_TOO_LARGE, f"the body is larger than {size_max} bytes")


def _check_digest(digest: Any, body: bytes) -> None:
    kinds = definition.DigestType
    if digest.type == kinds.MD5:
        found = hashlib.md5(body, usedforsecurity=False).hexdigest()
    elif digest.type == kinds.SHA1:
        found = hashlib.sha1(body, usedforsecurity=False).hexdigest()
    elif digest.type == kinds.CRC32:
        found = f"{binascii.crc32(body):08x}"
        if digest.checksum == str(binascii.crc32(body)):  # some clients write it as a decimal number
            return
    else:
        return
    if digest.checksum.lower().lstrip("0") != found.lstrip("0"):
        raise CallRejected(Code.MESSAGE_CORRUPTED, "the body does not have its digest")
