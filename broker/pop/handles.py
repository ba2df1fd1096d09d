"""What POP puts on the wire: receipt handles, offsets of an answer, names of retry topics, batch acknowledgements.

A receipt handle (`extraInfo`, the property POP_CK) is made by the client from the fields of the answer:

    ckQueueOffset popTime invisibleTime reviveQueue retry brokerName queueId [queueOffset [commitLogOffset]]

`retry` is 0 for the topic itself, 1 for `%RETRY%group_topic`, 2 for `%RETRY%group+topic`; this broker writes 0 and 2.
`startOffsetInfo` and `msgOffsetInfo` have the offsets of an answer: `retry queueId offset[,offset]` joined
with `;`; in order, `orderCountInfo` has how often each message was delivered before: `retry qo<queueId>%<offset> count`
for those that were, and `retry queueId count` for the queue. What comes from clients and cannot be parsed is Refused.
Pure.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names

TOPIC_MARK, RETRY_V1_MARK, RETRY_MARK = "0", "1", "2"
RETRY_SEPARATOR = names.RETRY_SEPARATOR
NUMBER_MAX = 2**62
BATCH_ACKS_MAX = 4_096
"""Most messages in one batch acknowledgement."""
_HANDLE_PARTS_MIN, _HANDLE_PARTS_MAX = 7, 9


def retry_topic(group: str, topic: str) -> str:
    """Where the messages of a topic go that the group did not acknowledge in time."""
    return f"{names.RETRY_PREFIX}{group}{RETRY_SEPARATOR}{topic}"


def mark_of(topic: str) -> str:
    """The mark of a topic in handles and offset information."""
    return RETRY_MARK if topic.startswith(names.RETRY_PREFIX) else TOPIC_MARK


def original_topic(group: str, topic: str) -> str:
    """The topic whose messages a topic of the group has: of a retry topic that it belongs to, else itself."""
    return topic.removeprefix(f"{names.RETRY_PREFIX}{group}{RETRY_SEPARATOR}")


@dataclass(frozen=True, slots=True)
class Handle:
    """A receipt handle: the ownership of a message that a client claims to have."""

    pop_ms: int
    invisible_ms: int
    broker: str
    queue_index: int


def parse_handle(text: str) -> Handle:
    """Refused(INVALID_PARAMETER) for a handle that is malformed."""
    parts = text.split(" ")
    if not _HANDLE_PARTS_MIN <= len(parts) <= _HANDLE_PARTS_MAX:
        raise _malformed(f"it has {len(parts)} parts")
    numbers = [*parts[:4], *parts[6:]]
    if not all(map(_is_number, numbers)):
        raise _malformed("a number in it is none")
    return Handle(int(parts[1]), int(parts[2]), parts[5], int(parts[6]))


def offset_info(topics: Iterable[tuple[str, int, Sequence[int]]]) -> tuple[str, str]:
    """`startOffsetInfo` and `msgOffsetInfo` of (topic, queue number, offsets)."""
    starts, offsets = [], []
    for topic, index, given in topics:
        head = f"{mark_of(topic)} {index} "
        starts.append(f"{head}{given[0]}")
        offsets.append(head + ",".join(map(str, given)))
    return ";".join(starts), ";".join(offsets)


def order_info(counts: Iterable[tuple[str, int, Mapping[int, int]]]) -> str:
    """`orderCountInfo` of (topic, queue number, offset -> deliveries before this one, ascending).

    Old clients know only the count of a queue, the lowest of its messages.
    """
    parts = []
    for topic, index, times in counts:
        mark = mark_of(topic)
        parts += [f"{mark} qo{index}%{offset} {count}" for offset, count in times.items() if count]
        parts.append(f"{mark} {index} {min(times.values())}")
    return ";".join(parts)


@dataclass(frozen=True, slots=True)
class BatchAck:
    """Messages of one queue that were given together."""

    group: str
    topic: str
    queue_index: int
    offsets: Sequence[int]
    """Ascending."""
    owned: tuple[int, int]
    """Pop time and invisible time."""


_SHORT = {
    "c": "consumerGroup", "t": "topic", "r": "retry", "so": "startOffset", "q": "queueId", "pt": "popTime",
    "it": "invisibleTime", "b": "bitSet",
}  # fmt: skip


def parse_batch(body: Mapping[str, Any]) -> list[BatchAck]:
    """The acknowledgements in the body of 200151. Refused(INVALID_PARAMETER) when it is malformed."""
    acks = body.get("acks")
    if not isinstance(acks, list):
        raise _malformed("acks is no list", "body")
    found, total = [], 0
    for each in acks:
        if not isinstance(each, dict):
            raise _malformed("an acknowledgement is no object", "body")
        ack = _batch_ack(each)
        total += len(ack.offsets)
        if total > BATCH_ACKS_MAX:
            raise _malformed(f"it acknowledges more than {BATCH_ACKS_MAX} messages", "body")
        found.append(ack)
    return found


def _batch_ack(fields: Mapping[str, Any]) -> BatchAck:
    values = {name: fields.get(short, fields.get(name)) for short, name in _SHORT.items()}
    group, topic, retry = (str(values[name] or "") for name in ("consumerGroup", "topic", "retry"))
    numbers = [str(values[name]) for name in ("startOffset", "queueId", "popTime", "invisibleTime")]
    if not group or not topic or not all(map(_is_number, numbers)):
        raise _malformed("a field is missing or not a number", "body")
    first, index, pop_ms, invisible_ms = map(int, numbers)
    topic = _real_topic(topic, group, retry)
    return BatchAck(group, topic, index, _offsets(first, values["bitSet"]), (pop_ms, invisible_ms))


def _real_topic(topic: str, group: str, mark: str) -> str:
    if mark == RETRY_MARK:
        return retry_topic(group, topic)
    return f"{names.RETRY_PREFIX}{group}_{topic}" if mark == RETRY_V1_MARK else topic


def _offsets(first: int, text: object) -> Sequence[int]:
    """The offsets whose bits are set: base64 of a bit set, lowest bit first."""
    try:
        bits = base64.b64decode(str(text or ""), validate=True)
    except (binascii.Error, ValueError):
        raise _malformed("bitSet is not base64", "body") from None
    if len(bits) * 8 > BATCH_ACKS_MAX:
        raise _malformed(f"bitSet has more than {BATCH_ACKS_MAX} bits", "body")
    number = int.from_bytes(bits, "little")
    if number & number + 1 == 0:  # all of them, as most clients acknowledge
        return range(first, first + number.bit_length())
    return tuple(first + bit for bit in range(number.bit_length()) if number >> bit & 1)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < len(str(NUMBER_MAX))


def _malformed(why: str, what: str = "receipt handle") -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, f"the {what} is malformed: {why}")
