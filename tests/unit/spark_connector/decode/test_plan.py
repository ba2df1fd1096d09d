"""What a query decodes: columns, projections and everything that is refused before a request to a broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_connector.decode.ddl import parse_columns
from spark_connector.decode.plan import all_columns, check_given, find_column, plan_decoding, project
from spark_connector.errors import OptionError
from spark_connector.options.read_write import ReadOptions
from spark_connector.options.schema import COLUMN_TYPES
from spark_connector.reading.task import sample_bodies

Options = Callable[..., ReadOptions]


def test_without_decode_there_is_nothing(read_options: Options) -> None:
    assert plan_decoding(read_options(topic="t"), None, sample_bodies) is None


def test_fields_follow_the_message_columns(read_options: Options) -> None:
    decoding = plan_decoding(
        read_options(topic="t", decode="json", decodeSchema="a int, b array<string>"), None, sample_bodies
    )
    assert decoding is not None
    columns = all_columns(decoding)
    assert columns.names == [*COLUMN_TYPES, "a", "b", "_corrupt"]
    assert project(columns, ["B", "mqtttopic", "_corrupt"]).names == ["b", "mqttTopic", "_corrupt"]
    assert project(columns, []) == columns
    assert project(columns, ["brokername", "a"]).names == ["brokerName", "a"]
    with pytest.raises(OptionError, match="unknown column '_corupt'; did you mean '_corrupt'"):
        project(columns, ["_corupt"])


def test_a_form_of_time_needs_a_timestamp(read_options: Options) -> None:
    for schema, allowed in (("a bigint", False), ("a array<struct<at:timestamp>>", True), ("a timestamp_ntz", True)):
        options = read_options(topic="t", decode="json", decodeSchema=schema, timestampUnit="ms")
        if allowed:
            assert plan_decoding(options, None, sample_bodies) is not None
            continue
        with pytest.raises(OptionError, match="'timestampUnit' does nothing: no field of the schema is a timestamp"):
            plan_decoding(options, None, sample_bodies)


def test_one_struct_column(read_options: Options) -> None:
    options = read_options(topic="t", decode="json", decodeSchema="topic int", decodeColumn="value")
    decoding = plan_decoding(options, None, sample_bodies)
    assert decoding is not None
    assert decoding.columns().simpleString() == "struct<value:struct<topic:int>,_corrupt:string>"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"decode": "json"}, "needs to know the fields"),
        ({"decode": "json", "decodeSchema": "a in"}, "'decodeSchema' = 'a in': character 3"),
        ({"decode": "json", "decodeSchema": "Topic int"}, "the field 'Topic' .* 'decodeColumn'"),
        ({"decode": "json", "decodeSchema": "_corrupt string"}, "the field '_corrupt'"),
        ({"decode": "json", "decodeSchema": "tags array<string>"}, "the field 'tags'"),
        ({"decode": "json", "decodeSchema": "a int", "decodeColumn": "body"}, "the name of another column"),
        ({"decode": "json", "decodeSchema": "a map<int,int>"}, "keys of JSON objects are strings"),
        ({"decode": "avro", "decodeSchema": "{}"}, "no Avro schema"),
        ({"decode": "protobuf", "decodeSchema": "/nowhere", "messageType": "a.B"}, "no file on the driver"),
    ],
)
def test_what_is_refused(read_options: Options, options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        plan_decoding(read_options(topic="t", **options), None, sample_bodies)


def test_a_schema_determines_the_fields(read_options: Options) -> None:
    given = parse_columns("mqttTopic string, a int, b struct<c:double>, _corrupt string")
    decoding = plan_decoding(read_options(topic="t", decode="json"), given, sample_bodies)
    assert decoding is not None
    assert decoding.fields.names == ["a", "b"]
    assert check_given(decoding, given) == given
    given = parse_columns("value struct<a:int>, body binary")
    decoding = plan_decoding(read_options(topic="t", decode="json", decodeColumn="value"), given, sample_bodies)
    assert decoding is not None
    assert decoding.fields.names == ["a"]
    with pytest.raises(OptionError, match="must be a struct"):
        plan_decoding(
            read_options(topic="t", decode="json", decodeColumn="body2"), parse_columns("BODY2 int"), sample_bodies
        )


def test_a_schema_is_checked(read_options: Options) -> None:
    decoding = plan_decoding(read_options(topic="t", decode="json", decodeSchema="a int"), None, sample_bodies)
    assert decoding is not None
    assert check_given(decoding, parse_columns("A int, QUEUEID int")).names == ["a", "queueId"]
    for wrong, says in (("a bigint", "'a' is int, not bigint"), ("body string", "'body' is binary"), ("z int", "'z'")):
        with pytest.raises(OptionError, match=says):
            check_given(decoding, parse_columns(wrong))
    assert find_column(parse_columns("a int").fields, "A").name == "a"


def test_formats_with_schemas_of_their_own(read_options: Options, tmp_path: Path) -> None:
    place = tmp_path / "reading.avsc"
    place.write_text('{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}')
    decoding = plan_decoding(read_options(topic="t", decode="avro", decodeSchema=str(place)), None, sample_bodies)
    assert decoding is not None
    assert decoding.columns().names == ["a", "_corrupt"]
