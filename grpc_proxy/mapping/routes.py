"""Routes: the queues of a topic, their permissions and the types of messages that they take. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from grpc_proxy.mapping.statuses import CallRejected, Code
from grpc_proxy.stubs import definition

READ, WRITE = 4, 2
"""Bits of a topic's `perm`."""
ALL_QUEUES = -1
Type = definition.MessageType
TYPES = {"NORMAL": Type.NORMAL, "FIFO": Type.FIFO, "DELAY": Type.DELAY, "TRANSACTION": Type.TRANSACTION}
TYPES |= {"LITE": Type.LITE, "PRIORITY": Type.PRIORITY}
MESSAGE_TYPE = "message.type"


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
        return [Type.NORMAL, Type.FIFO, Type.DELAY, Type.TRANSACTION]


def check_endpoints(endpoints: Any) -> None:
    """CallRejected(ILLEGAL_ACCESS_POINT) unless a client says at which addresses it reaches the proxy."""
    if not endpoints.addresses or any(not one.host or not 0 < one.port < 65_536 for one in endpoints.addresses):
        raise CallRejected(Code.ILLEGAL_ACCESS_POINT, "the request names no endpoints with host and port")


def route(config: RoutedTopic, topic: Any, broker_name: str, endpoints: Any) -> list[Any]:
    """Return the queues of a topic, all at the addresses where the client reaches the proxy."""
    broker = definition.Broker(name=broker_name, id=0, endpoints=endpoints)
    read = config.read_queue_nums if config.perm & READ else 0
    write = config.write_queue_nums if config.perm & WRITE else 0
    return [
        definition.MessageQueue(
            topic=topic, id=index, permission=_permission(index < read, index < write), broker=broker,
            accept_message_types=config.types,
        )
        for index in range(max(read, write))
    ]  # fmt: skip


def _permission(is_read: bool, is_written: bool) -> int:
    permission = definition.Permission
    if is_read and is_written:
        return int(permission.READ_WRITE)
    return int(permission.READ if is_read else permission.WRITE)


def assignment(config: RoutedTopic, topic: Any, broker_name: str, endpoints: Any, *, fifo: bool) -> list[Any]:
    """Return what a push consumer receives from: all queues at once, or each queue where order is kept."""
    broker = definition.Broker(name=broker_name, id=0, endpoints=endpoints)
    if not config.perm & READ:
        return []
    indices = range(config.read_queue_nums) if fifo else [ALL_QUEUES]
    return [
        definition.MessageQueue(topic=topic, id=index, permission=definition.Permission.READ, broker=broker)
        for index in indices
    ]
