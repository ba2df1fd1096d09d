"""Records that are not what they should be are named, never decoded."""

from __future__ import annotations

import struct

import pytest

from remoting.protocol import pull_body, record
from remoting.protocol.pull_body import PulledRange
from spark_connector.errors import BrokenRecord
from spark_connector.layout import parse_records
from tests.unit.spark_connector.toy_broker import encode, make_entry


def pulled(records: list[bytes]) -> PulledRange:
    """Records as they arrive."""
    count = len(records)
    return pull_body.decode_range_pull_reply(
        pull_body.encode_range_pull_reply(pull_body.QueueRecords(1, 0, 10, 10 + count, 0, 99, records))
    )


def test_spans() -> None:
    found = parse_records(pulled([encode(make_entry("a/b", b"one")), encode(make_entry("t", b"two", mqtt=False))]), "q")
    at, length, present = found.mqtt_topic_span()
    assert present.tolist() == [True, False]
    assert bytes(found.data[at[0] : at[0] + length[0]]) == b"a/b"
    assert found.offsets.tolist() == [10, 11]
    assert len(found.keep(present)) == 1
    assert len(parse_records(pulled([]), "q")) == 0


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (4, struct.pack("<I", record.BATCH), "not a message record"),
        (0, struct.pack("<I", 1 << 20), "sizes contradict"),
        (40, struct.pack("<I", 1 << 20), "sizes contradict"),
        (66, struct.pack("<H", 60_000), "sizes contradict"),
        (66, struct.pack("<H", 1), "property lengths"),
        (100, b"\xff", "checksum"),
    ],
)
def test_damage_names_queue_and_offset(place: int, value: bytes, says: str) -> None:
    good = encode(make_entry("a/b", b"body"))
    bad = good[:place] + value + good[place + len(value) :]
    with pytest.raises(BrokenRecord, match=rf"queue t/0, offset 11: .*{says}"):
        parse_records(pulled([good, bad]), "queue t/0")


def test_a_table_that_points_outside() -> None:
    found = pulled([encode(make_entry("a/b"))])
    found.starts = memoryview(struct.pack("<I", 8000))
    with pytest.raises(BrokenRecord, match="outside"):
        parse_records(found, "q")
