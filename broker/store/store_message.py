"""A message on its way into the store, and what the store says about where it went.

Invariant: `meta` is the lengths table, topic, keys, tags and properties of the record, byte for byte, so that the store
copies it without looking inside. Thread rule: plain values of the loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from remoting.protocol.records.record import MQTT_TOPIC_KEY


@dataclass(slots=True)
class StoreMessage:
    """One message, or a batch of `count` in one body; `queues` are the ids to dispatch to, the parent queue first.

    It is a batch exactly when its flags name a format of the body; each queue then advances by `count`.
    """

    queues: tuple[int, ...]
    born_ms: int
    flags: int
    tag_hash: int
    n_props: int
    topic_len: int
    keys_len: int
    tags_len: int
    props_len: int
    meta: bytes
    body: bytes | memoryview
    producer_seq: int = 0
    count: int = 1


class Appended(Protocol):
    """Where an append went; `offsets[i]` is message i's offset in its first queue (-1 when it has no queue)."""

    first_position: int
    end_position: int
    offsets: list[int]


def mqtt_topic(message: StoreMessage) -> bytes | None:
    """Return the full MQTT topic, which is the first property of an MQTT message; None when there is none."""
    if not message.n_props:
        return None
    meta = message.meta
    key_len = meta[0] | meta[1] << 8
    value_len = meta[2] | meta[3] << 8
    at = 4 * message.n_props + message.topic_len + message.keys_len + message.tags_len
    if meta[at : at + key_len] != MQTT_TOPIC_KEY:
        return None
    return bytes(meta[at + key_len : at + key_len + value_len])


def property_value(message: StoreMessage, wanted: bytes) -> bytes:
    """Value of a property, b"" when it is not there."""
    meta = message.meta
    at = 4 * message.n_props + message.topic_len + message.keys_len + message.tags_len
    for index in range(message.n_props):
        key_len, value_len = (
            int.from_bytes(meta[4 * index : 4 * index + 2], "little"),
            int.from_bytes(meta[4 * index + 2 : 4 * index + 4], "little"),
        )
        if meta[at : at + key_len] == wanted:
            return meta[at + key_len : at + key_len + value_len]
        at += key_len + value_len
    return b""
