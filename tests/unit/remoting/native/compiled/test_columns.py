"""The compiled record loops against the record's own view, and against what points outside."""

from __future__ import annotations

import numpy as np
import pytest

from remoting.native.checksum import crc32c
from tests.support.records import make_record

compiled = pytest.importorskip("remoting.native.compiled.columns", reason="not compiled", exc_type=ImportError)

PARTS = {"topic": 0, "keys": 1, "tags": 2, "mqtt": 3, "body": 4, "property": 5}


def blob(*records: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Records back to back, and the start of each."""
    starts = np.cumsum([0, *map(len, records)])[:-1].astype(np.int64)
    return np.frombuffer(b"".join(records), np.uint8), starts


def test_starts_outside_or_between_are_refused() -> None:
    """Neither before, nor after, nor at an odd position, nor cut short."""
    data, starts = blob(make_record(b"one"), make_record(b"two"))
    assert compiled.first_bad(data, starts, True) == -1
    for wrong in (-8, 4, 8, len(data), len(data) - 8, 1 << 40):
        assert compiled.first_bad(data, np.array([0, wrong]), True) == 1
    assert compiled.first_bad(data[:-8], starts, True) == 1


def test_checksums_are_left_out_when_asked() -> None:
    """Sizes are checked all the same."""
    raw = bytearray(make_record(b"body"))
    raw[-6] ^= 1
    data, starts = blob(bytes(raw))
    assert compiled.first_bad(data, starts, True) == 0
    assert compiled.first_bad(data, starts, False) == -1
    raw[0] ^= 8
    assert compiled.first_bad(*blob(bytes(raw)), False) == 0


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100, 1003])
def test_the_checksum_is_that_of_the_package(size: int) -> None:
    """Records made by Python are sound to C, whatever their length."""
    assert crc32c(b"123456789") == 0xE3069283
    assert compiled.first_bad(*blob(make_record(b"\xa5" * size)), True) == -1


def test_the_last_of_a_repeated_property_counts() -> None:
    """And what is missing is null."""
    pairs = [(b"k", b"1"), (b"kk", b"2"), (b"k", b"3")]
    data, starts = blob(make_record(properties=pairs, keys=b"key"), make_record(tags="é".encode()))
    offsets, values, validity, nulls, is_ascii = compiled.column(data, starts, PARTS["property"], b"k")
    assert (np.frombuffer(offsets, "<i4").tolist(), values, validity, nulls, is_ascii) == (
        [0, 1, 1],
        b"3",
        b"\1",
        1,
        True,
    )
    assert compiled.column(data, starts, PARTS["tags"], b"")[4] is False
    first, keys, values = compiled.properties(data, starts)
    assert np.frombuffer(first, "<i4").tolist() == [0, 3, 3]
    assert (keys[1], values[1]) == (b"kkkk", b"123")


def test_texts_are_looked_up() -> None:
    """And unknown ones are reported."""
    data, starts = blob(make_record(keys=b"a"), make_record(keys=b"b"), make_record(), make_record(keys=b"c"))
    out = np.full(4, 9, np.uint8)
    assert compiled.judge_texts(data, starts, PARTS["keys"], {b"a": True, b"b": False}, out) == {b"c"}
    assert out.tolist() == [1, 0, 0, 0]
