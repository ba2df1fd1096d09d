"""Staged images: what is shown is what was hidden, and the record says where it goes and when."""

from __future__ import annotations

import pytest

from remoting.protocol.records.image import check_image, encode_batch_image, encode_image, encode_mqtt_image, stamp
from remoting.protocol.records.record import FLAG_STAGED, RecordView
from remoting.protocol.records.staged import hide, show

IMAGES = [
    (encode_mqtt_image(b"a/b", b"x", 5, 7, b"c"), 0, 0x0D),
    (encode_image(flags=2 | 9 << 16, queue_index=3, born_ms=7, topic=b"t", keys=b"k", tags=b"tag", body=b"yy"), 1, 2),
    (encode_batch_image(topic=b"t", queue_index=5, born_ms=7, body=b"packed", count=9, codec=2), 2, 0x21),
]


@pytest.mark.parametrize(("image", "kind", "low_flags"), IMAGES)
def test_what_is_shown_is_what_was_hidden(image: bytes, kind: int, low_flags: int) -> None:
    view = check_image(image, 0, 0)
    hidden = RecordView(hide(view, own=1 << 20))
    assert (hidden.flags & 0xFF, hidden.flags >> 8) == (FLAG_STAGED, view.flags >> 8)
    assert hidden.producer_seq == view.epoch | kind << 16 | low_flags << 24 | 1 << 52
    record = stamp(hidden, epoch=4, position=64, store_ms=9, dispatch=[(8, 1)])
    assert show(RecordView(record)) == image
