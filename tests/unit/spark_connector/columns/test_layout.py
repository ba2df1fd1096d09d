"""Invalid records are named, never decoded."""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.bodies import pull_body
from remoting.protocol.bodies.pull_body import PulledRange
from remoting.protocol.records import record
from spark_connector.columns.layout import numbers, parse_records
from spark_connector.errors import BrokenRecord
from tests.unit.spark_connector.toy_broker import encode, make_entry
from tests.unit.spark_connector.twins import twin  # noqa: F401 - every test runs on both twins


def pulled(records: list[bytes]) -> PulledRange:
    """Records as they arrive from the broker."""
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


@given(
    bodies=st.lists(st.integers(0, 5).map(lambda n: b"x" * (n * 7)), min_size=1, max_size=20),
    where=st.integers(0, 10_000),
    bit=st.integers(0, 7),
)
def test_one_flipped_bit_never_passes(bodies: list[bytes], where: int, bit: int) -> None:
    records = [encode(make_entry("a/b", body), 8 * number) for number, body in enumerate(bodies)]
    assert len(parse_records(pulled(records), "q")) == len(records)
    whole = bytearray(b"".join(records))
    whole[where % len(whole)] ^= 1 << bit
    edges = [0, *accumulate(map(len, records))]
    damaged = [bytes(whole[begin:end]) for begin, end in pairwise(edges)]
    with pytest.raises(BrokenRecord, match="q, offset"):
        parse_records(pulled(damaged), "q")


def test_records_with_room_between_them_are_checked_one_by_one() -> None:
    good = encode(make_entry("a/b", b"body"))
    found = pulled([good, bytes(8), good])
    found.starts = memoryview(struct.pack("<II", 0, len(good) + 8))
    found.count = 2
    assert len(parse_records(found, "q")) == 2
    bad = good[:-9] + b"\xff" + good[-8:]
    found = pulled([good, bytes(8), bad])
    found.starts = memoryview(struct.pack("<II", 0, len(good) + 8))
    found.count = 2
    with pytest.raises(BrokenRecord, match=r"offset 11: .*checksum"):
        parse_records(found, "q")


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint16, np.bool_])
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 100])
def test_numbers_are_what_pyarrow_makes_of_them(kind: type, rows: int) -> None:
    """With and without nulls, of every length around a byte of the bitmap."""
    values = (np.arange(rows) % 3).astype(kind)
    absent = np.arange(rows) % 4 == 1
    assert numbers(values).equals(pa.array(values))
    assert numbers(values[::-1], absent).equals(pa.array(values[::-1].copy(), mask=absent))
