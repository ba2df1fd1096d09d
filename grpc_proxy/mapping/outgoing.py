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
from remoting.protocol.records.properties import PROPERTIES_SIZE_BYTES_MAX, is_reserved
from remoting.protocol.records.record import MQTT_TOPIC_KEY
from remoting.protocol.records.rocketmq_form import batch_part

Type = definition.MessageType
_NORMAL, _FIFO, _DELAY, _TRANSACTION, _LITE, _PRIORITY = map(
    int, (Type.NORMAL, Type.FIFO, Type.DELAY, Type.TRANSACTION, Type.LITE, Type.PRIORITY)
)
_GZIP = int(definition.Encoding.GZIP)
"""Plain numbers: an attribute of a generated enumeration costs as much as all else that is asked of a field."""
SHARDING_KEY, TRACE_CONTEXT, DELIVER_MS = "__SHARDINGKEY", "TRACE_CONTEXT", "TIMER_DELIVER_MS"
PRIORITY, LITE_TOPIC = "_SYS_MSG_PRIORITY_", "__LITE_TOPIC"
_MQTT_TOPIC = MQTT_TOPIC_KEY + b"\x01"
CHECK_AFTER_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TIME_MS_MAX = 2**53
BATCH_BYTES_MAX = 1024 * 1024
"""Most bytes of a batch's messages; a larger message goes alone."""
BATCHED_PROPERTIES_BYTES_MAX = 32_767
"""Most bytes of a message's properties in a batch, whose layout has a signed 16-bit length."""
_MARKS = (
    ("message_group", _FIFO), ("delivery_timestamp", _DELAY), ("lite_topic", _LITE), ("priority", _PRIORITY),
)  # fmt: skip
"""Fields that make a message one of a type."""
_SYSTEM = {PRIORITY.encode(), LITE_TOPIC.encode()}


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


@dataclass(slots=True)
class OutgoingMessage:
    """One message for the broker; not changed once it is made."""

    topic: str
    type: int
    message_id: str
    properties: bytes
    """In their text form."""
    body: bytes
    born_ms: int
    message_group: str = ""
    lite_topic: str = ""

    @property
    def fits_batch(self) -> bool:
        """Whether the broker takes it in a batch: it is only to be stored, at once."""
        properties = self.properties
        is_plain = self.type in (_NORMAL, _FIFO) and _MQTT_TOPIC not in properties
        return is_plain and len(properties) <= BATCHED_PROPERTIES_BYTES_MAX

    def fields(self, queue_index: int, properties: str | None = None) -> dict[str, str]:
        """Return the fields of SEND_MESSAGE_V2 for this queue; -1: the broker chooses one."""
        flags = "4" if self.type == _TRANSACTION else "0"
        text = self.properties.decode() if properties is None else properties
        return {
            "a": self.topic, "b": self.topic, "c": "TBW102", "d": "4", "e": str(queue_index), "f": flags,
            "g": str(self.born_ms), "h": "0", "i": text, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip


def batches(messages: Sequence[OutgoingMessage]) -> list[list[OutgoingMessage]]:
    """Return the messages in their order, those together that one request can take."""
    if len(messages) == 1:
        return [list(messages)]
    found: list[list[OutgoingMessage]] = []
    size_bytes, born_ms, group, joinable = 0, -1, "", False
    for message in messages:
        added_bytes, fits = len(message.body) + len(message.properties), message.fits_batch
        size_bytes += added_bytes
        joins = (
            joinable
            and fits
            and message.born_ms == born_ms
            and message.message_group == group
            and size_bytes <= BATCH_BYTES_MAX
        )
        if joins:
            found[-1].append(message)
        else:
            found.append([message])
            size_bytes, born_ms, group = added_bytes, message.born_ms, message.message_group
        joinable = fits
    return found


def batch_request(batch: Sequence[OutgoingMessage], queue_index: int) -> tuple[dict[str, str], bytes]:
    """Return the fields and the body of SEND_BATCH_MESSAGE."""
    body = b"".join([batch_part(each.body, each.properties) for each in batch])
    return {**batch[0].fields(queue_index, ""), "m": "true"}, body


def outgoing(message: Any, limits: Limits, now_ms: int) -> OutgoingMessage:
    """Return a client's message for the broker. CallRejected with the code of its first fault."""
    system, topic = message.system_properties, topic_of(message.topic)
    kind, message_id = type_of(system), system.message_id
    if not message_id:
        raise CallRejected(Code.ILLEGAL_MESSAGE_ID, "the message has no id")
    properties = _user_properties(message.user_properties, limits)
    _system_properties(properties, system, kind, limits)
    lite_topic = ""
    if kind == _LITE:
        lite_topic = properties[LITE_TOPIC] = checked_lite_topic(topic, system.lite_topic, limits.lite_topic_chars_max)
    elif kind == _TRANSACTION:
        properties |= {"TRAN_MSG": "true", "PGROUP": topic}
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties):
        raise CallRejected(Code.BAD_REQUEST, "a property holds one of the characters 0x01 and 0x02")
    raw = text.encode()
    if len(raw) > PROPERTIES_SIZE_BYTES_MAX:
        text = f"{len(raw)} bytes of properties, RocketMQ's own included; {PROPERTIES_SIZE_BYTES_MAX} may be"
        raise CallRejected(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    born_ms = ms_of(system.born_timestamp)
    return OutgoingMessage(
        topic,
        kind,
        message_id,
        raw,
        _body(message, system, limits.body_bytes_max),
        born_ms if 0 < born_ms < TIME_MS_MAX else now_ms,
        system.message_group if kind == _FIFO else "",
        lite_topic,
    )


def type_of(system: Any) -> int:
    """Return the type that the properties of a message make it. CallRejected when they contradict each other."""
    has, declared = system.HasField, int(system.message_type)
    found = [kind for name, kind in _MARKS if has(name)]
    if declared == _TRANSACTION:
        found.append(_TRANSACTION)
    if not found:
        found.append(_NORMAL)
    if found == [declared] or (not declared and len(found) == 1):
        return found[0]
    names = ", ".join(Type.Name(kind) for kind in found)
    text = f"the message is declared {Type.Name(declared or found[0])}, and its properties make it {names}"
    raise CallRejected(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)


def is_system(name: bytes) -> bool:
    """Whether a property has a meaning to RocketMQ, so that it is not one of the user's."""
    return is_reserved(name) or name in _SYSTEM


def _user_properties(given: Mapping[str, str], limits: Limits) -> dict[str, str]:
    found, size = dict(given), 0
    for name, text in found.items():
        raw = name.encode()
        size += len(raw) + (len(text) if text.isascii() else len(text.encode()))
        if not raw or is_system(raw) or "\x01" in name or "\x02" in name:
            raise CallRejected(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"a property may not be called {name[:64]!r}")
    if len(found) > limits.properties_max or size > limits.properties_bytes_max:
        text = (
            f"{len(given)} properties of {size} bytes; {limits.properties_max} of {limits.properties_bytes_max} may be"
        )
        raise CallRejected(Code.MESSAGE_PROPERTIES_TOO_LARGE, text)
    return found


def _system_properties(properties: dict[str, str], system: Any, kind: int, limits: Limits) -> None:
    """Add the properties that RocketMQ gives a meaning."""
    has = system.HasField
    properties["UNIQ_KEY"] = system.message_id
    if has("tag"):
        properties["TAGS"] = _tag(system.tag)
    if system.keys:
        properties["KEYS"] = _keys(system.keys)
    if has("trace_context"):
        properties[TRACE_CONTEXT] = system.trace_context
    if kind == _FIFO:
        properties[SHARDING_KEY] = _message_group(system.message_group, limits.message_group_chars_max)
    elif kind == _DELAY:
        properties[DELIVER_MS] = str(_delivery_ms(system.delivery_timestamp))
    elif kind == _PRIORITY:
        properties[PRIORITY] = _priority(system.priority)
    elif kind == _TRANSACTION and has("orphaned_transaction_recovery_duration"):
        properties[CHECK_AFTER_S] = str(max(0, ms_of(system.orphaned_transaction_recovery_duration) // 1_000))


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


def _body(message: Any, system: Any, size_max: int) -> bytes:
    """Return the body as consumers get it: decompressed and, where the client sent a digest, intact."""
    body: bytes = message.body
    if len(body) > size_max:
        raise _too_large(size_max)
    if system.HasField("body_digest"):
        _check_digest(system.body_digest, body)
    if system.body_encoding != _GZIP:
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
