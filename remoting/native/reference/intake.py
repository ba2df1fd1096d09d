"""The pure twin: publishes to store messages.

Invariant: the record is the one an APPEND_MANY entry of the same publish makes. Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from broker.store.store_message import StoreMessage
from remoting.protocol.records.image import mqtt_meta
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN
from remoting.transport.direct import PlainRun


def messages(
    runs: Sequence[PlainRun],
    queues: Mapping[bytes, tuple[int, ...]],
    missed: Callable[[bytes], tuple[int, ...]],
    too_large: Callable[[int, int], Exception],
    body_bytes_max: int,
    properties_bytes_max: int,
) -> list[StoreMessage]:
    """The runs' publishes as messages with their queues."""
    made: list[StoreMessage] = []
    for client_id, born_ms, publishes in runs:
        for one in publishes:
            topic, body = one.topic, one.payload
            _size, parent_len, props_len, meta = mqtt_meta(topic, client_id)
            if len(body) > body_bytes_max or props_len > properties_bytes_max:
                raise too_large(len(body), props_len)
            flags = FLAG_MQTT | FLAG_RETAIN | one.qos if one.retain else FLAG_MQTT | one.qos
            found = queues.get(topic) or missed(topic)
            made.append(StoreMessage(found, born_ms, flags, 0, 2, parent_len, 0, 0, props_len, meta, body))
    return made
