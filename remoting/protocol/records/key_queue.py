"""Which queue of a topic a message's key belongs to: the one function of every producer here.

    queue = |Java's String.hashCode(key)| mod number of queues

Invariant: the same as RocketMQ's SelectMessageQueueByHash, so that a Java producer chooses the same queue for a key.
Pure.
"""

from __future__ import annotations

from remoting.protocol.records.record import tag_hash

_SIGN = 0x8000_0000


def queue_of(key: bytes, queue_count: int) -> int:
    """The queue of a key among `queue_count` of them."""
    value = tag_hash(key)
    return abs(value - (value & _SIGN) * 2) % queue_count
