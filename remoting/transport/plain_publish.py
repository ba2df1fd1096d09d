"""A publish without properties, as it goes from a session to a broker of the same process.

A class of its own and compiled, because each field is read several times per message in rooms that know nothing of each
other. Invariant: `packet_id` is 0 exactly when `qos` is 0. Loop rule: belongs to whoever holds it; no locks.
"""

from __future__ import annotations


class PlainPublish:
    """What the broker stores of one PUBLISH, and the id its acknowledgement needs."""

    __slots__ = ("packet_id", "payload", "qos", "retain", "topic")

    def __init__(self, topic: bytes, payload: bytes, qos: int, retain: bool, packet_id: int) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.packet_id = packet_id
