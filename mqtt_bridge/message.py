"""From a record of our log to what is published at the peer, and from a message of the peer to an append entry.

Invariant: with MQTT 5 every property of a message arrives at the other side, with what is left of its expiry; with
3.1.1 there are none. Pure functions; the time comes from outside.
"""

from __future__ import annotations

import msgspec

from mqtt_bridge.mapping import OutMapping, Target
from mqtt_bridge.message_path import CAME_BY_KEY, Place, outgoing_user, why_not_out
from remoting.protocol.bodies.append_body import KIND_MQTT, QUEUE_INDEX_ANY, encode_entry
from remoting.protocol.records.mqtt_properties import MessageProperties, from_pairs, to_pairs
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.record import (
    CLIENT_ID_KEY,
    FLAG_MQTT,
    FLAG_QOS_MASK,
    FLAG_RETAIN,
    MQTT_TOPIC_KEY,
    RecordView,
)

EXPIRED = "expired"
PACKET_OVERHEAD_BYTES = 64
"""Room for the fixed header, lengths, packet id and the fixed-size properties of a PUBLISH."""
PROPERTY_OVERHEAD_BYTES = 5
"""Identifier and two lengths of a user property."""


class Outgoing(msgspec.Struct):
    """One copy of a message for the peer."""

    target: Target
    payload: bytes
    properties: MessageProperties | None = None

    @property
    def size_bytes(self) -> int:
        """At most this many bytes on the wire."""
        size = len(self.target.topic) + len(self.payload) + PACKET_OVERHEAD_BYTES
        said = self.properties
        if said is not None:
            size += sum(len(text or b"") for text in (said.content_type, said.response_topic, said.correlation_data))
            size += sum(len(key) + len(value) + PROPERTY_OVERHEAD_BYTES for key, value in said.user)
        return size


def outgoing(record: RecordView, mapping: OutMapping, place: Place, now_ms: int) -> tuple[list[Outgoing], str]:
    """The copies of a record to send, and if a rule wants it but none goes, why."""
    topic = record.mqtt_topic
    if topic is None:
        return [], ""
    flags = record.flags
    targets = mapping.targets(topic, flags & FLAG_QOS_MASK, retain=bool(flags & FLAG_RETAIN))
    if not targets:
        return [], ""
    pairs = record.properties()
    reason = why_not_out(place, pairs)
    if reason:
        return [], reason
    said = from_pairs(pairs) or MessageProperties()
    if said.expiry_s is not None:
        said.expiry_s -= max(0, now_ms - record.store_ms) // 1000
        if said.expiry_s <= 0:
            return [], EXPIRED
    said.user = outgoing_user(place, said.user)
    payload = bytes(record.body)
    return [Outgoing(target, payload, said if place.is_v5 else None) for target in targets], ""


def entry(
    target: Target, payload: bytes, properties: MessageProperties | None, place: Place, *, client: bytes, now_ms: int
) -> bytes:
    """The append entry of a message that came from the peer; LocalMisuse if a part of it does not fit."""
    pairs = [(MQTT_TOPIC_KEY, target.topic), (CLIENT_ID_KEY, client)]
    if properties is not None:
        pairs += to_pairs(properties)
    pairs.append((CAME_BY_KEY, place.connection))
    return encode_entry(
        kind=KIND_MQTT,
        flags=FLAG_MQTT | target.qos | (FLAG_RETAIN if target.retain else 0),
        queue_index=QUEUE_INDEX_ANY,
        born_ms=now_ms,
        topic=parent_topic(target.topic),
        properties=pairs,
        body=payload,
    )
