"""A retained message that is said again because retention reaches its record: the same, but for what time has taken.

The Message Expiry Interval of a record counts from its store time. Said again it has a new one, so the interval that
is left takes the place of the one it had. Invariant: saying a message again never lets it live longer. Pure functions.
"""

from __future__ import annotations

import struct

from broker.store.store_message import StoreMessage
from remoting.protocol.records.mqtt_properties import EXPIRY, expiry_of
from remoting.protocol.records.record import RecordView


def expires_ms(record: RecordView) -> int | None:
    """When the message expires; None when it does not."""
    if EXPIRY not in bytes(record.meta):
        return None
    expiry_s = expiry_of(record.properties())
    return None if expiry_s is None else record.store_ms + expiry_s * 1_000


def republished(record: RecordView, now_ms: int) -> StoreMessage | None:
    """The message as it is to be said now, without a queue; None when it has expired."""
    n_props, topic_len, keys_len, tags_len, props_len = record.counts
    message = StoreMessage(
        (), record.born_ms, record.flags, record.tag_hash, n_props, topic_len, keys_len, tags_len, props_len,
        bytes(record.meta), bytes(record.body), record.producer_seq,
    )  # fmt: skip
    at_ms = expires_ms(record)
    if at_ms is None:
        return message
    left_ms = at_ms - now_ms
    if left_ms <= 0:
        return None
    left = b"%d" % -(-left_ms // 1_000)
    pairs = [(key, left if key == EXPIRY else value) for key, value in record.properties()]
    parts = [part for pair in pairs for part in pair]
    names = message.meta[4 * n_props : 4 * n_props + topic_len + keys_len + tags_len]
    lengths = struct.pack(f"<{len(parts)}H", *map(len, parts))
    message.props_len = sum(map(len, parts))
    message.meta = b"".join((lengths, names, *parts))
    return message
