"""Digests of rows: the same for the same rows however they are divided, another one for any other rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from remoting.protocol.bodies.sink_body import BatchDigest
from remoting.protocol.errors import LocalMisuse
from spark_connector.columns import layout
from spark_connector.options.read_write import parse_write
from spark_connector.writing import digests
from spark_connector.writing.replays import KIND, are_same, total
from spark_connector.writing.row_encoder import Defaults, EncodedRows, encode_rows
from spark_connector.writing.writer import digest_rows, encoded_rows
from tests.unit.spark_connector.twins import twin  # noqa: F401 - a fixture

ROW: Mapping[str, Any] = {"topic": "t", "key": "k", "tag": "g", "body": b"body", "properties": [("a", "1")]}
PAIRS = pa.map_(pa.string(), pa.string())


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
    """The columns that some of the rows have."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: pa.array([row.get(name) for row in rows], PAIRS if name == "properties" else None) for name in names}


def encoded(*rows: Mapping[str, Any], born_ms: int = 0) -> EncodedRows:
    return encode_rows(columns_of(rows), len(rows), Defaults(1, False, born_ms))


def digest(*rows: Mapping[str, Any]) -> BatchDigest:
    return digests.digest_of(encoded(*rows))


def test_order_tasks_and_groups_do_not_matter() -> None:
    rows = [{**ROW, "body": b"%d" % number, "key": "k" * number} for number in range(4)]
    whole = digest(*rows)
    assert {digest(*order) for order in permutations(rows)} == {whole}
    assert total([digest(*rows[:1]), digest(*rows[1:])]) == whole
    assert total([digest(*rows), None]) is None
    assert total([]) == BatchDigest(0, 0, 0, KIND)


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "u"},
        {"key": "l"},
        {"key": None},
        {"tag": "h"},
        {"tag": "k", "key": "g"},
        {"body": b"bodz"},
        {"body": b"body\0"},
        {"body": b""},
        {"properties": [("a", "2")]},
        {"properties": [("a1", "")]},
        {"mqttTopic": "t"},
    ],
    ids=str,
)
def test_each_part_of_a_row_counts(change: Mapping[str, Any]) -> None:
    assert not are_same(digest(ROW), digest({**ROW, **change}))


def test_words_that_change_places_and_rows_that_come_twice_count() -> None:
    assert not are_same(digest({**ROW, "body": b"a" * 8 + b"b" * 8}), digest({**ROW, "body": b"b" * 8 + b"a" * 8}))
    assert not are_same(digest(ROW), digest(ROW, ROW))
    other = {**ROW, "body": b"other"}
    assert not are_same(digest(ROW, ROW, other, other), digest(ROW, ROW, ROW, other))


def test_what_the_connector_adds_does_not_count() -> None:
    """When a row was made, the queue it goes to, and its trace context."""
    assert digests.digest_of(encoded(ROW, born_ms=7)) == digest(ROW)
    queued = {**columns_of([ROW]), "queue": layout.numbers(np.array([3], np.uint16))}
    assert digests.digest_of(encode_rows(queued, 1, Defaults(1, False, 0))) == digest(ROW)
    options = parse_write({"topic": "t"})
    traced = columns_of([{**ROW, "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}])
    assert digest_rows(traced, 1, options, encoded_rows(traced, 1, options)) == digest(ROW)


def test_records_of_many_rows_are_compared_row_by_row() -> None:
    """However they were divided among records."""
    rows = columns_of([{**ROW, "body": b"%d" % number} for number in range(5)])
    found = set()
    for batch_rows in ("2", "5"):
        options = parse_write({"topic": "t", "batchCodec": "lz4", "batchRows": batch_rows})
        found.add(digest_rows(rows, 5, options, encoded_rows(rows, 5, options)))
    assert len(found) == 1
    assert found.pop().rows == 5


BATCHED = parse_write({"topic": "t", "batchCodec": "lz4"})


def batched(*rows: Mapping[str, Any]) -> BatchDigest:
    columns = columns_of(rows)
    return digest_rows(columns, len(rows), BATCHED, encoded_rows(columns, len(rows), BATCHED))


@pytest.mark.parametrize(
    "change",
    [
        {"key": "l"},
        {"key": "", "tag": "kg"},
        {"tag": "h"},
        {"body": b"bodz"},
        {"body": b"body\0"},
        {"properties": [("a", "2")]},
        {"properties": [("a1", "")]},
        {"properties": []},
        {"contentType": "text/plain"},
    ],
    ids=str,
)
def test_each_part_of_a_row_of_a_batch_topic_counts(change: Mapping[str, Any]) -> None:
    assert batched(ROW) == batched({**ROW, "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})
    assert not are_same(batched(ROW), batched({**ROW, **change}))
    assert total([batched(ROW), batched({**ROW, **change})]) == total([batched({**ROW, **change}), batched(ROW)])
    assert batched({"body": b"x"}, {"body": b"y"}) == batched({"body": b"y"}, {"body": b"x"})
    assert are_same(batched(ROW), digest({**ROW, **change})), "of two kinds, which are not compared"


def test_both_twins_and_every_size_of_piece_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that are written down, because a later release must find the same."""
    rows = encoded(*({**ROW, "body": b"x" * size} for size in range(40)))
    assert digest(ROW) == BatchDigest(1, 4382981603907127576, 13991725051197007430, KIND)
    expected = digests.digest_of(rows)
    for words in (1, 7, 50, 10_000):
        monkeypatch.setattr(digests, "PIECE_WORDS", words)
        assert digests.hashed(rows.data, rows.edges) == (expected.low, expected.high)


@pytest.mark.skipif(layout.core is None, reason=layout.choice.reason)
@pytest.mark.parametrize("edges", [[0, 12], [8, 0], [-8, 8], [0, 24]])
def test_edges_outside_the_bytes_are_refused(edges: list[int]) -> None:
    from remoting.native.compiled import columns

    with pytest.raises(LocalMisuse):
        columns.digest(np.zeros(16, np.uint8), np.array(edges, np.int64), 0)


def test_digests_of_another_kind_are_not_compared() -> None:
    assert are_same(BatchDigest(1, 2, 3, KIND), BatchDigest(9, 9, 9, KIND + 1))
