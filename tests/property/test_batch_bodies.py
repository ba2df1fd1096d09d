"""Bodies of batches under hypothesis: all messages survive encoding and decoding, and damaged bytes only raise.

Damage is done to the stream behind the compression as well as to the packed body, so it reaches Arrow's own reader.
What is accepted nevertheless is read to the last value, with the row count that was asked for.
"""

from __future__ import annotations

import contextlib
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.batches import BatchRow, body
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.record import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD
from tests.support.batches import make_rows

TEXT = st.text(max_size=20).map(str.encode)
ROW = st.builds(
    BatchRow,
    st.binary(max_size=200),
    st.integers(0, 2**53),
    TEXT,
    TEXT,
    st.lists(st.tuples(TEXT, TEXT), max_size=4).map(tuple),
)
COUNT = 50
SAMPLES = {
    codec: [
        body.encode(body.from_rows(make_rows(COUNT)), codec),
        body.encode(body.from_rows(make_rows(COUNT)).select(["body"]), codec),
        body.encode(body.from_rows([BatchRow(b"x", key=b"k")] * COUNT), codec),
    ]
    for codec in (CODEC_NONE, CODEC_LZ4, CODEC_ZSTD)
}
DAMAGE = st.lists(
    st.tuples(st.sampled_from(["flip", "set", "word", "cut", "insert"]), st.integers(0, 1 << 20), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)


def damaged(data: bytes, changes: list[tuple[str, int, int]]) -> bytes:
    """The bytes with some damage, mostly in place."""
    found = bytearray(data)
    for kind, where, value in changes:
        at = where % max(1, len(found))
        match kind:
            case "flip" if found:
                found[at] ^= 1 << (value & 7)
            case "set" if found:
                found[at] = value
            case "word":
                struct.pack_into("<i", found, min(at, max(0, len(found) - 4)), [-1, 1 << 30, value, -value][value & 3])
            case "cut":
                del found[at:]
                found += bytes(8)
            case "insert":
                found[at:at] = bytes([value]) * 8
    return bytes(found)


@settings(max_examples=150, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=40), st.sampled_from([CODEC_NONE, CODEC_LZ4, CODEC_ZSTD]))
def test_messages_survive_a_round_trip(rows: list[BatchRow], codec: int) -> None:
    batch = body.decode(body.encode(body.from_rows(rows), codec), codec, len(rows))
    assert body.to_rows(batch, 0) == rows


@pytest.mark.parametrize("codec", [CODEC_NONE, CODEC_LZ4, CODEC_ZSTD])
@settings(max_examples=600, deadline=None)
@given(which=st.integers(0, 2), changes=DAMAGE)
def test_damage_raises_or_changes_nothing_else(codec: int, which: int, changes: list[tuple[str, int, int]]) -> None:
    with contextlib.suppress(CorruptRecord):
        batch = body.decode(damaged(SAMPLES[codec][which], changes), codec, COUNT)
        assert batch.num_rows == COUNT
        assert len(body.to_rows(batch, 0)) == COUNT


@settings(max_examples=300, deadline=None)
@given(which=st.integers(0, 2), changes=DAMAGE)
def test_damage_behind_the_compression(which: int, changes: list[tuple[str, int, int]]) -> None:
    raw = damaged(SAMPLES[CODEC_NONE][which], changes)
    packed = struct.pack("<Q", len(raw)) + pa.Codec("lz4").compress(raw, asbytes=True)
    with contextlib.suppress(CorruptRecord):
        batch = body.decode(packed, CODEC_LZ4, COUNT)
        assert len(body.to_rows(batch, 0)) == COUNT


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 3), st.integers(1, 5))
def test_arbitrary_bytes(data: bytes, codec: int, count: int) -> None:
    with pytest.raises(CorruptRecord):
        body.decode(data, codec, count)
