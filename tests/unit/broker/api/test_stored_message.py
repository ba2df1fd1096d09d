"""RocketMQ's layout of our records, read back by our own client's decoder."""

from __future__ import annotations

import zlib

from broker.api.stored_message import offset_message_id, pack_host, stored_message
from remoting.client.stored_message import decode_messages
from remoting.protocol.record import MESSAGE, RecordView, encode_record


def record(topic: bytes, body: bytes) -> RecordView:
    raw = encode_record(
        magic_type=MESSAGE, epoch=1, position=640, born_ms=5, store_ms=6, flags=0x30_0000, count=1, dispatch=[(1, 2)],
        counts=(0, len(topic), 0, 0, 0), tag_hash=0, producer_seq=0, meta=topic, body=body,
    )  # fmt: skip
    return RecordView(raw)


def test_short_and_long_topics() -> None:
    for topic in (b"t", b"%RETRY%" + b"g" * 200):
        raw = stored_message(record(topic, b"body"), 3, 9, pack_host("10.0.0.1", 10_911))
        (message,) = decode_messages(raw)
        assert (message.topic, message.body) == (topic.decode(), b"body")
        assert (message.queue_id, message.queue_offset, message.physical_offset) == (3, 9, 640)
        assert (message.born_ms, message.store_ms, message.sys_flag) == (5, 6, 0)
        assert int.from_bytes(raw[8:12], "big") == zlib.crc32(b"body") & 0x7FFFFFFF


def test_ids_name_host_and_position() -> None:
    assert offset_message_id(pack_host("10.0.0.1", 10_911), 640) == "0A00000100002A9F0000000000000280"
    assert pack_host("not-an-address", 1)[:4] == bytes([127, 0, 0, 1])
