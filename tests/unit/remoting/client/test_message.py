"""Messages as programs write them: what fits no record is said at once."""

from __future__ import annotations

import pytest

from remoting.batches.row import BatchRow
from remoting.client.message import OVERHEAD_BYTES, Message, Sent, image_of, size_of, to_row
from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.image import image_views, wanted_queue


def test_a_message_becomes_a_row_and_an_entry() -> None:
    message = Message(topic="t", body=b"x", key="kä", tag="g", properties={"a": "1", "b": ""})
    row = to_row(message, 77)
    assert row == BatchRow(b"x", 77, "kä".encode(), b"g", ((b"a", b"1"), (b"b", b"")))
    assert to_row(Message(topic="t", body=b"", born_ms=5), 77).born_ms == 5
    assert size_of(row) == OVERHEAD_BYTES + 1 + 3 + 1 + 3
    (entry,) = image_views(b"".join([image_of(row, b"t", 3)]))
    assert (entry.topic, wanted_queue(entry), entry.born_ms, entry.body, entry.tags) == (b"t", 3, 77, b"x", b"g")
    assert entry.counts[0] == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"key": "k" * 65_536}, "up to 65535"),
        ({"tag": "k" * 65_536}, "up to 65535"),
        ({"properties": {"a": "k" * 65_535}}, "up to 65535"),
        ({"key": "\ud800"}, "no Unicode text"),
        ({"born_ms": -1}, "born_ms is -1"),
        ({"born_ms": 2**60}, "born_ms is"),
    ],
)
def test_what_fits_no_record_is_refused(fields: dict, said: str) -> None:
    with pytest.raises(LocalMisuse, match=said):
        to_row(Message(topic="t", body=b"", **fields), 0)


def test_a_place_is_a_value() -> None:
    assert Sent("t", 1, 2) == Sent("t", 1, 2)
