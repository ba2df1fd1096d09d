"""The vectorised encoding gives the very bytes of `encode_image`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.protocol.records import image, names
from spark_connector.columns.layout import byte_strings
from spark_connector.errors import OptionError
from spark_connector.writing.row_encoder import Defaults, EncodedRows, encode_rows

DEFAULTS = Defaults(qos=1, retain=False, born_ms=77, delay_ms=9)
MAP = pa.map_(pa.string(), pa.string())
row = st.fixed_dictionaries(
    {
        "mqttTopic": st.none() | st.sampled_from(["a/b", "é/b", "c"]),
        "topic": st.sampled_from(["t1", "t2"]),
        "key": st.none() | st.text(max_size=5),
        "tag": st.none() | st.text(max_size=5),
        "properties": st.none()
        | st.lists(
            st.tuples(
                st.sampled_from(["k", "originMqttTopic", "", "DELAY", "traceparent"]), st.none() | st.text(max_size=4)
            ),
            max_size=3,
        ),
        "body": st.none() | st.binary(max_size=30),
        "qos": st.none() | st.integers(0, 2),
        "retain": st.none() | st.booleans(),
        "contentType": st.none() | st.sampled_from(["text/plain", "50%", ""]),
        "traceparent": st.none() | st.sampled_from(["00-1-2-01", ""]),
        "delay": st.none() | st.sampled_from([0, 5, 86_400_000]),
    }
)
TYPES = {"delay": pa.int64(), "properties": MAP, "body": pa.binary(), "qos": pa.int32(), "retain": pa.bool_()}


def by_hand(one: dict[str, Any]) -> bytes:
    """The entry of one row, built slowly."""
    exact = one["mqttTopic"]
    own = [] if exact is None else [(b"originMqttTopic", exact.encode())]
    if delay := DEFAULTS.delay_ms if one["delay"] is None else one["delay"]:
        own.append((b"TIMER_DELAY_MS" if exact is None else b"delay-ms", b"%d" % delay))
    if one["contentType"] is not None:
        own.append((b"mqttContentType", one["contentType"].replace("%", "%25").encode()))
    if one["traceparent"] is not None:
        own.append((b"traceparent", one["traceparent"].encode()))
    taken = ("originMqttTopic", "DELAY", "traceparent")
    pairs = [(k.encode(), (v or "").encode()) for k, v in one["properties"] or [] if k not in taken]
    flags = 0 if exact is None else 8 | (1 if one["qos"] is None else one["qos"]) | (4 if one["retain"] else 0)
    return image.encode_image(
        flags=flags,
        queue_index=0xFFFF,
        born_ms=77,
        topic=one["topic"].encode() if exact is None else names.parent_topic(exact.encode()),
        keys=(one["key"] or "").encode(),
        tags=(one["tag"] or "").encode(),
        properties=own + pairs,
        body=one["body"] or b"",
    )


def parts(found: EncodedRows) -> list[bytes]:
    """The entries one by one."""
    return [bytes(found.data[found.edges[n] : found.edges[n + 1]]) for n in range(len(found))]


@settings(max_examples=80, deadline=None)
@given(st.lists(row, max_size=8), st.integers(0, 3))
def test_row_by_row(rows: list[dict[str, Any]], skip: int) -> None:
    columns = {
        name: pa.array([one[name] for one in rows], TYPES.get(name, pa.string())).slice(skip)
        for name in (rows[0] if rows else {})
    }
    wanted = [by_hand(one) for one in rows[skip:]]
    assert parts(encode_rows(columns, len(wanted), DEFAULTS)) == wanted


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"topic": ["a/b"]}, "mqttTopic"),
        ({"topic": [None]}, "column 'topic' is null in 1 of 1 rows"),
        ({"topic": [None], "mqttTopic": [None]}, "'mqttTopic' and 'topic' are both null"),
        ({"topic": ["t"], "delay": [-1]}, "column 'delay' holds -1"),
        ({"topic": ["t"], "body": ["b" * (16 << 20)]}, "column 'body' holds 16777216 bytes"),
        ({"mqttTopic": ["a/+"]}, "'a/\\+'"),
        ({"mqttTopic": ["$SYS/x"]}, "'.SYS/x': topics that begin with"),
        ({"topic": ["t"], "key": ["k" * 70_000]}, "column .key. holds 70000 bytes in the row with key .k{40}….,"),
        ({"mqttTopic": ["t"], "qos": [5]}, "'qos' holds 5"),
    ],
)
def test_what_cannot_be_sent_is_named(columns: dict[str, list[Any]], says: str) -> None:
    given_columns = {name: pa.array(values) for name, values in ({"body": ["x"]} | columns).items()}
    with pytest.raises(OptionError, match=says):
        encode_rows(given_columns, 1, DEFAULTS)


def test_a_row_that_does_not_fit_is_named_by_the_user_s_column_and_its_key() -> None:
    keys = pa.array(["a", "b"])
    headers = pa.array([[], [(f"k{n}", "v" * 60_000) for n in (1, 2)]], MAP)
    cases: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        ("value", {"body": pa.array(["x", "y" * (16 << 20)])}, {"body": "value"}),
        ("labels", {"tag": pa.array(["x", "y" * 70_000])}, {"tag": "labels"}),
        ("headers", {"properties": headers}, {"headers": "headers"}),
    ]
    for column, given_columns, said in cases:
        columns = {"body": pa.array(["x", "x"]), "topic": pa.array(["t", "t"]), "key": keys} | given_columns
        with pytest.raises(OptionError, match=f"column '{column}' holds .* bytes in the row with key 'b', "):
            encode_rows(columns, 2, DEFAULTS, said)


@given(st.lists(st.none() | st.binary(max_size=20), max_size=20))
def test_byte_strings_are_what_arrow_makes_of_them(values: list[bytes | None]) -> None:
    assert byte_strings(values).equals(pa.array(values, pa.binary()))
