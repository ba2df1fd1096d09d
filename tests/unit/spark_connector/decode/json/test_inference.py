"""Fields from a sample: how types widen, where the sample comes from, and how the columns stay the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_connector.decode.ddl import parse_columns
from spark_connector.decode.json import inference as json_inference
from spark_connector.decode.json.inference import infer_fields, keep, merge_bodies, read_kept
from spark_connector.errors import OptionError
from spark_connector.options.read_write import ReadOptions
from spark_connector.reading.sample import sample_bodies
from tests.unit.spark_connector.toy_broker import ToyBroker

Options = Callable[..., ReadOptions]


@pytest.mark.parametrize(
    ("bodies", "says"),
    [
        (['{"b":1,"a":"x"}'], "a:string,b:bigint"),
        (['{"a":1}', '{"a":1.5}'], "a:double"),
        (['{"a":1}', '{"a":"x"}'], "a:string"),
        (['{"a":1}', '{"a":true}'], "a:string"),
        (['{"a":null}', '{"a":true}'], "a:boolean"),
        (['{"a":null}'], "a:string"),
        (['{"a":[]}', '{"a":[null,2]}'], "a:array<bigint>"),
        (['{"a":[1,"x"]}'], "a:array<string>"),
        (['{"a":{"x":1}}', '{"a":{"y":[{"z":false}]}}'], "a:struct<x:bigint,y:array<struct<z:boolean>>>"),
        (['{"a":{}}'], "a:string"),
        (['{"a":{"x":1}}', '{"a":1}'], "a:string"),
        (['{"a":9223372036854775808}'], "a:double"),
        (['{"a":"2026-01-01T00:00:00Z"}'], "a:string"),
        (["[1]", "x", ""], ""),
    ],
)
def test_types_widen(bodies: list[str], says: str) -> None:
    assert merge_bodies([body.encode() for body in bodies]).simpleString() == f"struct<{says}>"


def test_keys_that_are_data_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_inference, "FIELDS_MAX", 2)
    with pytest.raises(OptionError, match="an object of 3 fields"):
        merge_bodies([b'{"a":1,"b":1,"c":1}'])


def test_a_sample_of_a_broker(broker: ToyBroker, read_options: Options) -> None:
    assert sample_bodies(read_options(topic="t", decode="json", inferSchema="true")) == []
    broker.publish("t", [b'{"old":1}', *[b'{"n":%d}' % n for n in range(9)]], mqtt=False)
    options = read_options(topic="t", decode="json", inferSchema="true", inferSchemaRows="5")
    assert sample_bodies(options) == [b'{"n":%d}' % n for n in range(4, 9)]
    assert infer_fields(options, sample_bodies).simpleString() == "struct<n:bigint>"


def test_a_sample_of_a_filter(broker: ToyBroker, read_options: Options) -> None:
    broker.publish("a/1", [b'{"x":1}'])
    broker.publish("a/2", [b'{"y":1}'])
    options = read_options(mqttFilter="a/+", decode="json", inferSchema="true")
    assert infer_fields(options, sample_bodies).names == ["x", "y"]
    broker.publish("b/1", [b"no object"])
    with pytest.raises(OptionError, match="no message read is a JSON object"):
        infer_fields(read_options(mqttFilter="b/1", decode="json", inferSchema="true"), sample_bodies)


def test_what_was_found_is_kept(broker: ToyBroker, read_options: Options, tmp_path: Path) -> None:
    place = tmp_path / "new" / "schema.json"
    options = read_options(topic="t", decode="json", inferSchema="true", schemaLocation=str(place))
    broker.publish("t", [b'{"n":1}'], mqtt=False)
    first = infer_fields(options, sample_bodies)
    broker.publish("t", [b'{"n":"other","m":1}'], mqtt=False)
    assert infer_fields(options, sample_bodies) == first
    assert keep(place, parse_columns("z int")) == first, "the first to write it wins"
    assert [one.name for one in place.parent.iterdir()] == ["schema.json"]
    place.write_text("{}")
    with pytest.raises(OptionError, match="cannot be read"):
        read_kept(place)
    with pytest.raises(OptionError, match="cannot be written"):
        keep(place / "below" / "x", first)
