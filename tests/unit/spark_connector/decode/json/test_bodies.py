"""JSON bodies: whatever the bytes, one row per body, and the fast path agrees with the slow one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_connector.columns.arrow import arrow_schema
from spark_connector.decode.ddl import parse_columns
from spark_connector.decode.json.bodies import JsonDecoder, find_plain, holds_decimal, is_read_by_arrow
from spark_connector.decode.json.values import MomentForm, converters_of, parse_object, read_fields

SCHEMA = arrow_schema(
    parse_columns(
        "a bigint, s string, f double, t timestamp, nt timestamp_ntz, d decimal(6,2), b boolean, "
        "n struct<x:array<int>, y:float>"
    )
)
DECODER = JsonDecoder(SCHEMA)
WORDS = [
    *(
        b'{ } " a s f t d : , [ ] 1 - . e null true NaN Inf Infinity \\ u0041 "a": "s": "t":"2026-01-01 "n":{"x": "d": '
        b'T00:00 Z +01 "nt":"2026-01-01 .5 "b": "f": "y": 99999 \xff \xc3\xa9'
    ).split(),
    b" ",
    b"\n",
    b"\x00",
]
BODIES = st.one_of(
    st.binary(max_size=30),
    st.lists(st.sampled_from(WORDS), max_size=14).map(b"".join),
    st.lists(st.sampled_from(WORDS), max_size=14).map(lambda parts: b"{" + b"".join(parts) + b"}"),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(BODIES, min_size=1, max_size=20))
def test_any_bytes_give_one_row_each_regardless_of_neighbours(bodies: list[bytes]) -> None:
    decoded = DECODER.decode(pa.array(bodies, pa.binary()))
    converters = converters_of(SCHEMA)
    for column in decoded.columns:
        assert len(column) == len(bodies)
        column.validate(full=True)
    for row, body in enumerate(bodies):
        found, why = parse_object(body)
        values: list[Any] = [None] * len(SCHEMA)
        if found is not None:
            values, why = read_fields(found, converters)
        assert bool(why) == (row in decoded.reasons), (body, why, decoded.reasons)
        for column, value, field in zip(decoded.columns, values, SCHEMA, strict=True):
            # As text, because NaN is not equal to itself.
            assert str(column[row]) == str(pa.array([value], field.type)[0])


NUMBERS = [
    *(
        b'{ } "at": "nt": 0 -1 1769853600000 1769853600123456789 1e3 1.5 "2026-01-31T10:00:00Z" "31.01.2026 10:00" , :'
    ).split(),
    b'"x":{"at":',
]
MOMENTS = [("s", ""), ("ms", ""), ("us", ""), ("ns", ""), ("ms", "dd.MM.yyyy HH:mm"), (None, "dd.MM.yyyy HH:mm")]
MOMENT_SCHEMA = arrow_schema(parse_columns("at timestamp, nt timestamp_ntz, n int, x struct<at:timestamp>"))


@pytest.mark.parametrize(("unit", "form"), MOMENTS)
@settings(max_examples=100, deadline=None)
@given(
    bodies=st.lists(
        st.one_of(
            st.integers(-(2**63), 2**63 - 1).map(lambda number: b'{"at":%d}' % number),
            st.integers(-(10**10), 10**13).map(lambda number: b'{"at":%d,"n":1}' % number),
            st.lists(st.sampled_from(NUMBERS), max_size=8).map(lambda parts: b"{" + b"".join(parts) + b"}"),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_moments_in_another_form_are_the_same_both_ways(unit: str | None, form: str, bodies: list[bytes]) -> None:
    decoded = JsonDecoder(MOMENT_SCHEMA, unit, form or None).decode(pa.array(bodies, pa.binary()))
    converters = converters_of(MOMENT_SCHEMA, MomentForm(unit or "s", form))
    for row, body in enumerate(bodies):
        found, why = parse_object(body)
        values: list[Any] = [None] * len(MOMENT_SCHEMA)
        if found is not None:
            values, why = read_fields(found, converters)
        assert bool(why) == (row in decoded.reasons), (body, why, decoded.reasons)
        for column, value, field in zip(decoded.columns, values, MOMENT_SCHEMA, strict=True):
            assert column.type == field.type
            assert str(column[row]) == str(pa.array([value], field.type)[0])


@pytest.mark.parametrize(
    ("unit", "form", "body"),
    [
        ("s", None, b'{"at":1769853600}'),
        ("ms", None, b'{"at":1769853600000}'),
        ("ms", None, b'{"at":"2026-01-31T10:00:00Z"}'),
        ("us", None, b'{"at":1769853600000000}'),
        ("ns", None, b'{"at":1769853600000000999}'),
        ("ms", None, b'{"at":1769853600000.5e0}'),
        (None, "dd.MM.yyyy HH:mm:ss", b'{"at":"31.01.2026 10:00:00"}'),
        (None, "yyyy-MM-dd'T'HH:mm:ss.SSSXXX", b'{"at":"2026-01-31T12:00:00.000+02:00"}'),
        (None, "M/d/yyyy H:m", b'{"at":"1/31/2026 10:0"}'),
    ],
)
def test_one_moment_in_many_forms(unit: str | None, form: str | None, body: bytes) -> None:
    schema = arrow_schema(parse_columns("at timestamp"))
    decoded = JsonDecoder(schema, unit, form).decode(pa.array([body, b'{"at":true}'], pa.binary()))
    (at,) = decoded.columns
    assert str(at[0]).startswith("2026-01-31 10:00:00")
    assert list(decoded.reasons) == [1]


def test_a_thousand_rows_with_a_few_invalid_ones() -> None:
    bodies = [b'{"a":%d,"s":"x"}' % n for n in range(1000)]
    for wrong in (3, 500, 999):
        bodies[wrong] = b'{"a":"no","s":"kept"}'
    bodies[700], bodies[701] = b"{}{}", b""
    bodies[800] = b'{"a":1,"a":2}'
    decoded = DECODER.decode(pa.array(bodies, pa.binary()))
    assert sorted(decoded.reasons) == [3, 500, 700, 701, 999]
    numbers = decoded.columns[0].to_pylist()
    assert [n for n, value in enumerate(numbers) if value != n] == [3, 500, 700, 701, 800, 999]
    assert numbers[800] == 2
    assert decoded.columns[1][3].as_py() == "kept"


@pytest.mark.parametrize("schema", ["m map<string,int>, a int", "a array<binary>", "a struct<d:date>"])
def test_types_that_are_read_one_by_one(schema: str) -> None:
    decoder = JsonDecoder(arrow_schema(parse_columns(schema)))
    decoded = decoder.decode(pa.array([b'{"m":{"k":1}}', b"{}", b"x"], pa.binary()))
    assert list(decoded.reasons) == [2]
    assert {len(column) for column in decoded.columns} == {3}


def test_a_slice_and_a_query_without_fields() -> None:
    bodies = pa.array([b"x", b'{"a":1}', b' {"a":2}\r\n', b"x"], pa.binary()).slice(1, 2)
    decoded = DECODER.decode(bodies)
    assert decoded.columns[0].to_pylist() == [1, 2]
    assert not decoded.reasons
    assert JsonDecoder(pa.schema([])).decode(bodies).reasons == {}


def test_which_bodies_may_share_a_stream() -> None:
    bodies = {b"{}": True, b" {}\n": True, b"{": True, b"": False, b" ": False, b"{\0}": False, b'{"\xff"}': False}
    bodies |= {b'{"a":NaN}': False, b'{"s":"Info"}': True, b"{" + b" " * 99 + b"}": True, b" " * 99 + b"{}": False}
    bodies[b'{"a":-Inf}'] = False
    expected = list(bodies.values())
    expected[2] = False  # it does not end with a brace
    assert find_plain(pa.array(bodies, pa.binary())).tolist() == expected
    assert not find_plain(pa.array([b"", b""], pa.binary())).any()


def test_what_arrow_reads() -> None:
    nested = pa.struct([("a", pa.list_(pa.decimal128(3, 1)))])
    assert is_read_by_arrow(nested)
    assert holds_decimal(nested)
    assert not is_read_by_arrow(pa.list_(pa.map_(pa.string(), pa.int8())))
