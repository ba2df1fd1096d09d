"""Message records for tests, with every field that does not matter filled in."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from remoting.protocol.records.record import FILLER, FLAG_MQTT, MESSAGE, MQTT_TOPIC_KEY, encode_record


def make_record(
    body: bytes = b"body",
    *,
    topic: bytes = b"t",
    keys: bytes = b"",
    tags: bytes = b"",
    properties: Sequence[tuple[bytes, bytes]] = (),
    flags: int = 0,
    position: int = 0,
    epoch: int = 1,
    born_ms: int = 1,
    store_ms: int = 2,
    dispatch: Sequence[tuple[int, int]] = ((1, 0),),
    magic_type: int = MESSAGE,
    count: int | None = None,
) -> bytes:
    """One record with its checksum; a filler has no message unless `count` is given."""
    parts = [part for pair in properties for part in pair]
    lengths = struct.pack(f"<{len(parts)}H", *map(len, parts))
    return encode_record(
        magic_type=magic_type, epoch=epoch, position=position, born_ms=born_ms, store_ms=store_ms, flags=flags,
        count=int(magic_type != FILLER) if count is None else count, dispatch=list(dispatch),
        tag_hash=0, producer_seq=0, body=body,
        counts=(len(properties), len(topic), len(keys), len(tags), sum(map(len, parts))),
        meta=b"".join((lengths, topic, keys, tags, *parts)),
    )  # fmt: skip


def make_mqtt_record(mqtt_topic: bytes, body: bytes, *, flags: int = FLAG_MQTT | 1, **fields: object) -> bytes:
    """One record as a broker stores a publish; the parent topic is the first level."""
    fields.setdefault("topic", mqtt_topic.partition(b"/")[0])
    return make_record(body, properties=[(MQTT_TOPIC_KEY, mqtt_topic)], flags=flags, **fields)  # type: ignore[arg-type]
