"""Routes: the queues of a topic at its broker groups, their permissions and the types of messages that they take.

A topic is where groups have it (`TopicPlaces`). The queues of all of them, in the order of the groups' names, are one
list: a message group or lite topic has one place in it, which every proxy computes alike. Pure.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from grpc_proxy.mapping.statuses import CallRejected, Code
from grpc_proxy.stubs import definition

READ, WRITE = 4, 2
"""Bits of a topic's `perm`."""
ALL_QUEUES = -1
Choice = TypeVar("Choice")
Type = definition.MessageType
TYPES = {"NORMAL": Type.NORMAL, "FIFO": Type.FIFO, "DELAY": Type.DELAY, "TRANSACTION": Type.TRANSACTION}
TYPES |= {"LITE": Type.LITE, "PRIORITY": Type.PRIORITY}
MESSAGE_TYPE = "message.type"
_UNDECLARED = [int(kind) for kind in (Type.NORMAL, Type.FIFO, Type.DELAY, Type.TRANSACTION)]
"""What a topic without the attribute takes."""


class RoutedTopic(msgspec.Struct, rename="camel"):
    """What the proxy reads of the answer to GET_TOPIC_CONFIG."""

    topic_name: str
    read_queue_nums: int = 1
    write_queue_nums: int = 1
    perm: int = READ | WRITE
    attributes: dict[str, str] = {}

    @property
    def types(self) -> list[int]:
        """The types of messages that the topic takes: that of its attribute, or all that need no such attribute."""
        declared = TYPES.get(self.attributes.get(MESSAGE_TYPE, ""))
        if declared is not None:
            return [declared]
        return _UNDECLARED


@dataclass(frozen=True, slots=True)
class TopicPlaces:
    """A topic at the broker groups that have it."""

    topic: str
    groups: tuple[tuple[str, RoutedTopic], ...]
    """(broker group, topic there), in the order of their names."""
    unknown: tuple[str, ...] = ()
    """Broker groups that may have the topic, and have not said so yet."""

    def readable(self) -> list[str]:
        """The broker groups that have the topic and let it be read."""
        return [broker for broker, config in self.groups if config.perm & READ and config.read_queue_nums]

    def writable(self, kind: int) -> list[tuple[str, int]]:
        """(broker group, number of queues) for messages of this type; where none may be written to, all that have the
        topic, which refuse. CallRejected when no group takes the type."""
        taking = [(broker, config) for broker, config in self.groups if kind in config.types]
        if not taking:
            text = f"the topic {self.topic!r} does not take messages of the type {Type.Name(kind)}"
            raise CallRejected(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
        found = [(broker, config.write_queue_nums) for broker, config in taking if config.perm & WRITE]
        return [(broker, count) for broker, count in found if count] or [(broker, 1) for broker, _config in taking]

    def takes(self, broker: str, kind: int) -> bool:
        """Whether messages of this type may be written to this broker group."""
        return any(
            name == broker and kind in config.types and config.perm & WRITE and config.write_queue_nums > 0
            for name, config in self.groups
        )

    def queue_of(self, name: str, kind: int) -> tuple[str, int]:
        """(broker group, queue) of a message group: the same as long as the queues are the same.

        CallRejected when it cannot be told, because a broker group has not said yet whether it has queues of the topic.
        """
        queues = [(broker, index) for broker, count in self.writable(kind) for index in range(count)]
        return self._one(queues, name)

    def home_of(self, lite_topic: str) -> str:
        """The broker group of a lite topic: the same as long as the groups are the same. CallRejected as `queue_of`."""
        return self._one([broker for broker, _count in self.writable(Type.LITE)], lite_topic)

    def homes_of(self, lite_topics: Iterable[str]) -> set[str]:
        """The broker groups of lite topics; none for a topic that has no lite topics."""
        if not any(Type.LITE in config.types for _broker, config in self.groups):
            return set()
        return {self.home_of(name) for name in lite_topics}

    def _one(self, choices: Sequence[Choice], name: str) -> Choice:
        if self.unknown:
            text = f"the broker group {self.unknown[0]!r} is not reached, so the order cannot be kept"
            raise CallRejected(Code.HA_NOT_AVAILABLE, text)
        return choices[binascii.crc32(name.encode()) % len(choices)]


def check_endpoints(endpoints: Any) -> None:
    """CallRejected(ILLEGAL_ACCESS_POINT) unless a client says at which addresses it reaches the proxy."""
    if not endpoints.addresses or any(not one.host or not 0 < one.port < 65_536 for one in endpoints.addresses):
        raise CallRejected(Code.ILLEGAL_ACCESS_POINT, "the request names no endpoints with host and port")


def route(places: TopicPlaces, topic: Any, endpoints: Any) -> list[Any]:
    """Return the queues of a topic, all at the addresses where the client reaches the proxy."""
    queues = []
    for name, config in places.groups:
        broker = definition.Broker(name=name, id=0, endpoints=endpoints)
        read = config.read_queue_nums if config.perm & READ else 0
        write = config.write_queue_nums if config.perm & WRITE else 0
        queues += [
            definition.MessageQueue(
                topic=topic, id=index, permission=_permission(index < read, index < write), broker=broker,
                accept_message_types=config.types,
            )
            for index in range(max(read, write))
        ]  # fmt: skip
    return queues


def _permission(is_read: bool, is_written: bool) -> int:
    permission = definition.Permission
    if is_read and is_written:
        return int(permission.READ_WRITE)
    return int(permission.READ if is_read else permission.WRITE)


def assignment(places: TopicPlaces, topic: Any, endpoints: Any, *, fifo: bool) -> list[Any]:
    """Return what a push consumer receives from: a group's queues at once, or each of them where order is kept."""
    queues = []
    for name, config in places.groups:
        broker = definition.Broker(name=name, id=0, endpoints=endpoints)
        indices: Sequence[int] = range(config.read_queue_nums) if fifo else [ALL_QUEUES]
        queues += [
            definition.MessageQueue(topic=topic, id=index, permission=definition.Permission.READ, broker=broker)
            for index in (indices if config.perm & READ else ())
        ]
    return queues
