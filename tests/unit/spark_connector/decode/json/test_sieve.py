"""The quick check: right types pass, wrong ones do not, and what msgspec has no type for passes."""

from __future__ import annotations

import pyarrow as pa

from spark_connector.columns.arrow import arrow_schema
from spark_connector.decode.ddl import parse_columns
from spark_connector.decode.json.bodies import Sieve

SCHEMA = arrow_schema(
    parse_columns(
        "b tinyint, `a b` double, c boolean, d string, e timestamp, f array<int>, g struct<x:float>, h decimal(3,1), "
        "i bigint"
    )
)


def test_which_bodies_fit() -> None:
    bodies = {
        b"{}": True,
        b'{"b":-128,"a b":1,"c":null,"d":"x","e":"x","f":[1,null],"g":{"x":1.5,"y":0},"h":"any","i":1,"z":[]}': True,
        b'{"b":128}': False,
        b'{"a b":"1"}': False,
        b'{"d":1}': False,
        b'{"f":[1.5]}': False,
        b'{"g":[1]}': False,
        b'{"i":9223372036854775808}': False,
        b"[]": False,
        b"": False,
        b'{"z":' + b"[" * 100_000 + b"]" * 100_000 + b"}": False,
    }
    assert Sieve(SCHEMA).fitting(pa.array(bodies, pa.binary())).tolist()[:-1] == list(bodies.values())[:-1]
