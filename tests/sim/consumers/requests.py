"""What clients of RocketMQ and proxies put into their requests, and read from the answers.

A message's body begins with its name, which ends with a semicolon. Invariant: pure; names are ASCII.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from remoting.protocol.records.properties import encode_properties
from remoting.protocol.records.record import FLAG_RETAIN
from remoting.protocol.records.stored_message import StoredMessage, iter_stored
from tests.sim.consumers.door import Door, NoAnswer

QOS_1 = 1
PULLED_MAX = 32


def body_of(name: str, filling: int = 0) -> bytes:
    """The body of a message."""
    return f"{name};".encode() + bytes(filling)


def name_of(body: bytes | memoryview) -> str:
    """The name of the message with this body."""
    return bytes(body).split(b";", 1)[0].decode()


def sending(
    topic: str, queue: int, properties: Iterable[tuple[bytes, bytes]] = (), sys_flag: int = 0
) -> dict[str, Any]:
    """Fields of SEND_MESSAGE_V2."""
    text = encode_properties(properties).decode()
    return {
        "a": "senders", "b": topic, "c": "TBW102", "d": "4", "e": queue, "f": sys_flag, "g": "0", "h": "0", "i": text,
    }  # fmt: skip


def position_of(sent: Command) -> int:
    """Where the message of an answered send stands in the log."""
    return int(sent.fields["msgId"][16:], 16)


def publish(topic: str, name: str, filling: int = 0, *, retain: bool = False) -> bytes:
    """The body of an APPEND_MANY with one message; an empty name is an empty payload."""
    payload = body_of(name, filling) if name else b""
    return encode_mqtt_image(topic.encode(), payload, QOS_1 | (FLAG_RETAIN if retain else 0), 0, b"device")


class Popped:
    """One message as a POP consumer has it."""

    def __init__(self, stored: StoredMessage, answer: Command, offset: int | None = None) -> None:
        """`offset`: where in its lite topic it stands; None for a message of a queue."""
        self.name = name_of(stored.body)
        self.topic, self.queue = stored.topic.decode(), stored.queue_id
        self.offset = stored.queue_offset if offset is None else offset
        fields = answer.fields
        if offset is not None:
            start, mark, self.queue = "0", "0", 0
        else:
            mark = "2" if self.topic.startswith("%RETRY%") else "0"
            starts = dict(tuple(part.rsplit(" ", 1)) for part in fields["startOffsetInfo"].split(";"))
            start = starts[f"{mark} {self.queue}"]
        self.handle = (
            f"{start} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} {mark} broker-a "
            f"{self.queue} {self.offset}"
        )

    def fields(self, group: str, topic: str | None = None, **more: object) -> dict[str, Any]:
        """Of a request about it."""
        return {
            "consumerGroup": group, "topic": topic or self.topic, "queueId": self.queue, "offset": self.offset,
            "extraInfo": self.handle, **more,
        }  # fmt: skip


def popping(group: str, topic: str, count: int, invisible_ms: int, **more: object) -> dict[str, Any]:
    """Fields of POP_MESSAGE."""
    return {
        "consumerGroup": group, "topic": topic, "queueId": -1, "maxMsgNums": count, "invisibleTime": invisible_ms,
        "pollTime": 0, "bornTime": 0, "initMode": 0, **more,
    }  # fmt: skip


def popped(answer: Command) -> list[Popped]:
    """The messages of an answer to POP_MESSAGE."""
    return [Popped(stored, answer) for stored in iter_stored(answer.body)] if answer.code == 0 else []


async def pulled(door: Door, topic: str, queue: int, offset: int = 0) -> list[StoredMessage]:
    """Every message of a queue, from an offset on. Raises NoAnswer."""
    found: list[StoredMessage] = []
    while True:
        fields = {"consumerGroup": "auditors", "topic": topic, "queueId": queue, "queueOffset": offset, "sysFlag": 4,
                  "maxMsgNums": PULLED_MAX, "subscription": "*", "commitOffset": 0}  # fmt: skip
        answer = await door.ask(Code.PULL_MESSAGE, fields)
        if answer.code == ResponseCode.SUCCESS:
            found += iter_stored(answer.body)
        next_offset = int(answer.fields.get("nextBeginOffset", offset))
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED):
            if answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST):
                return found
            raise NoAnswer(answer.remark)
        if next_offset <= offset:
            return found
        offset = next_offset
