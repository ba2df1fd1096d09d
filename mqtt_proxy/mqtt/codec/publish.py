"""PUBLISH as a value: the packet of which there are most, in a compiled class of its own.

Like the other packets (`packets`) it holds exactly what is on the wire, and what only MQTT 5 has comes last with a
default. Invariant: `packet_id` is 0 exactly when `qos` is 0. Pure: no input or output, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from remoting.protocol.records.mqtt_properties import MessageProperties
from remoting.transport.plain_publish import PlainPublish


class Publish(PlainPublish):
    """PUBLISH in either direction."""

    __slots__ = ("dup", "properties", "subscription_ids", "topic_alias")

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: bool,
        dup: bool,
        packet_id: int,
        properties: MessageProperties | None = None,
        topic_alias: int = 0,
        subscription_ids: tuple[int, ...] = (),
    ) -> None:
        super().__init__(topic, payload, qos, retain, packet_id)
        self.dup = dup
        self.properties = properties
        self.topic_alias = topic_alias
        self.subscription_ids = subscription_ids

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Publish) and self.fields() == other.fields()

    def __repr__(self) -> str:
        return f"Publish{self.fields()}"

    def fields(self) -> tuple[object, ...]:
        """All there is to say of it."""
        return (
            self.topic, self.payload, self.qos, bool(self.retain), bool(self.dup), self.packet_id, self.properties,
            self.topic_alias, self.subscription_ids,
        )  # fmt: skip


def survey(publishes: Sequence[Publish], exact: bool) -> tuple[bool, int, list[int]]:
    """Whether all of them are plain, the bytes of their topics and payloads, the packet ids of those that have one.

    `exact`: with QoS 2 the broker notes packet ids, so that such a publish is not plain.
    """
    plain = True
    size_bytes = 0
    packet_ids: list[int] = []
    for one in publishes:
        size_bytes += len(one.topic) + len(one.payload)
        if one.properties is not None or (exact and one.qos > 1):
            plain = False
        if one.packet_id:
            packet_ids.append(one.packet_id)
    return plain, size_bytes, packet_ids
