"""Options of decoding: what goes together and what is refused, by name."""

from __future__ import annotations

import pytest

from spark_connector.errors import OptionError
from spark_connector.options.read_write import parse_read


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"decode": "jsn"}, "did you mean 'json'"),
        ({"decodeSchema": "a int"}, "'decodeSchema' needs the option 'decode'"),
        ({"inferSchema": "true"}, "'inferSchema' needs the option 'decode'"),
        ({"decode": "avro"}, "avro needs the option 'decodeSchema'"),
        ({"decode": "avro", "decodeSchema": "x", "messageType": "a.B"}, "'messageType' is for 'decode' = protobuf"),
        ({"decode": "protobuf", "decodeSchema": "x"}, "needs the option 'messageType'"),
        ({"decode": "sparkplug", "decodeSchema": "x"}, "'decodeSchema' is for 'decode' = json and avro and protobuf"),
        ({"decode": "sparkplug", "includeSchema": "true"}, "'inferSchema' is for 'decode' = json"),
        ({"decode": "json", "decodeSchema": "a int", "inferSchema": "true"}, "not both"),
        ({"decode": "json", "schemaLocation": "/x"}, "'schemaLocation' keeps what"),
        ({"decode": "json", "mode": "dropmalformed"}, "permissive, failfast"),
        ({"decode": "json", "inferSchemaRows": "0"}, "above 0"),
    ],
)
def test_what_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_read({"topic": "t", **options})


def test_what_is_taken() -> None:
    parsed = parse_read({"topic": "t", "decode": "JSON", "inferSchema": "true", "mode": "FAILFAST"})
    assert (parsed.decode, parsed.infer_schema, parsed.decode_mode) == ("json", True, "failfast")
    assert parse_read({"topic": "t"}).decode is None
