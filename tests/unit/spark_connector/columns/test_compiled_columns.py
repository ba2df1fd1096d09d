"""The compiled columns' own rules; their equality with the pure ones is tested with the decode."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_connector.columns import layout
from spark_connector.columns.arrow import decode
from spark_connector.columns.layout import BODY, KEYS, PROPERTY, CompiledParts, parse_records
from tests.unit.spark_connector.columns.test_arrow import KEY, pulled
from tests.unit.spark_connector.toy_broker import encode, make_entry

pytestmark = pytest.mark.skipif(layout.core is None, reason=layout.choice.reason)


def test_columns_of_no_and_of_some_records() -> None:
    """Empty columns are complete columns; what is missing is null."""
    map_type = pa.map_(pa.string(), pa.string())
    for count in (0, 9):
        records = parse_records(pulled([encode(make_entry("a/b", b"x" * n), n) for n in range(count)]), "q")
        parts = CompiledParts(records)
        assert parts.binary(BODY).to_pylist() == [b"x" * n for n in range(count)]
        assert parts.text(KEYS).to_pylist() == [None] * count
        assert parts.text(PROPERTY, b"originMqttTopic").to_pylist() == ["a/b"] * count
        assert len(parts.properties(map_type)) == count


def test_a_damaged_record_is_not_sound() -> None:
    """Any byte after the total that the checksum covers."""
    good = encode(make_entry("a/b", b"body"))
    records = parse_records(pulled([good]), "q")
    data = records.data.copy()
    records.data = data
    for at in (4, 8, 12, 20, 40, 56, 60, 68, 79, len(good) - 1):
        data[at] ^= 1
        assert not layout.are_sound(records), at
        data[at] ^= 1
    assert layout.are_sound(records)


def test_pieces_hold_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets continue from piece to piece; a table that does not rise stays whole and is refused as a whole."""
    monkeypatch.setattr(layout, "PIECE_ROWS", 4)
    whole = pulled([encode(make_entry("a/b", b"x" * n), n) for n in range(10)])
    schema = pa.schema([("queueOffset", pa.int64()), ("body", pa.binary())])
    rows = [row for batch in decode(whole, KEY, schema) for row in batch.to_pylist()]
    assert rows == [{"queueOffset": 5 + n, "body": b"x" * n} for n in range(10)]
    whole.starts = memoryview(bytes(whole.starts[:4]) * 10)
    assert [piece.count for piece in layout.pieces(whole)] == [10]
