"""PUBLISH as a value: the most frequent packet, in a compiled class of its own.

Like the other packets (`packets`) it contains exactly what is on the wire, and what only MQTT 5 has comes last with a
default. Invariant: `packet_id` is 0 exactly when `qos` is 0. Pure: no input or output, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from remoting.protocol.records.image import encode_mqtt_image
from remoting.protocol.records.properties import MessageProperties, to_pairs
from remoting.protocol.records.record import FLAG_RETAIN

QOS_EXACT = 2


class Publish:
    """PUBLISH in either direction."""

    __slots__ = (
        "dup", "packet_id", "payload", "properties", "qos", "retain", "subscription_ids", "topic", "topic_alias",
    )  # fmt: skip

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
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.packet_id = packet_id
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
        """All fields, for equality and repr."""
        return (
            self.topic, self.payload, self.qos, bool(self.retain), bool(self.dup), self.packet_id, self.properties,
            self.topic_alias, self.subscription_ids,
        )  # fmt: skip


def image_of(one: Publish, client_id: bytes, born_ms: int, exact: bool) -> bytes:
    """The record image of a publish; `exact`: with QoS 2 the broker notes its packet id. Raises LocalMisuse."""
    properties = one.properties
    return encode_mqtt_image(
        one.topic,
        one.payload,
        one.qos | FLAG_RETAIN if one.retain else one.qos,
        born_ms,
        client_id,
        one.packet_id if exact and one.qos == QOS_EXACT else 0,
        to_pairs(properties) if properties is not None else (),
    )


def images(publishes: Sequence[Publish], client_id: bytes, born_ms: int, exact: bool) -> tuple[bytes, list[int]]:
    """The images of what one client sent, and packet ids of those that have one."""
    parts: list[bytes] = []
    packet_ids: list[int] = []
    for one in publishes:
        parts.append(image_of(one, client_id, born_ms, exact))
        if one.packet_id:
            packet_ids.append(one.packet_id)
    return b"".join(parts), packet_ids
