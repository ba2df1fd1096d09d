"""Columns that become properties: precedence, omissions, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_connector.errors import OptionError
from spark_connector.writing.row_encoder import DELAY_KEYS, by_distinct, own_pairs

MQTT_AND_QUEUE = np.array([True, False, True, False])


def said(columns: dict[str, Any], delay_ms: int = 0) -> tuple[list[list[tuple[bytes, bytes]]], tuple[bytes, ...]]:
    """The pairs of each row, and the keys left out of the map."""
    pairs, taken = own_pairs(columns, MQTT_AND_QUEUE, delay_ms)
    rows = [[(k[n].as_py(), v[n].as_py()) for k, v in pairs if k[n].as_py()] for n in range(4)]
    return rows, taken


def test_nothing_asked_for_costs_nothing() -> None:
    assert own_pairs({}, MQTT_AND_QUEUE, 0) == ([], ())


def test_a_delay_is_written_in_the_form_of_its_kind() -> None:
    rows, taken = said({"delay": pa.array([5, 6, 0, None], pa.int32())}, delay_ms=9)
    assert rows == [[(b"delay-ms", b"5")], [(b"TIMER_DELAY_MS", b"6")], [], [(b"TIMER_DELAY_MS", b"9")]]
    assert taken == DELAY_KEYS


def test_a_content_type_is_quoted_as_the_proxy_does_and_null_is_none() -> None:
    rows, taken = said({"contentType": pa.array(["a%b", None, "", "x"])})
    assert rows == [[(b"mqttContentType", b"a%25b")], [], [(b"mqttContentType", b"")], [(b"mqttContentType", b"x")]]
    assert taken == (b"mqttContentType",)


@pytest.mark.parametrize("wrong", [-1, 10**15])
def test_an_invalid_delay_is_named(wrong: int) -> None:
    with pytest.raises(OptionError, match=f"'delay' holds {wrong}"):
        said({"delay": pa.array([0, 0, 0, wrong])})


def test_each_distinct_value_is_changed_once() -> None:
    seen: list[bytes] = []
    column = pa.array([b"a", None, b"b", b"a"])
    assert by_distinct(column, lambda value: seen.append(value) or value.upper()).to_pylist() == [
        b"A",
        None,
        b"B",
        b"A",
    ]  # type: ignore[func-returns-value]
    assert seen == [b"a", b"b"]
