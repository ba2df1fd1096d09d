"""Columns, projections and nearest names."""

from __future__ import annotations

import pytest

from spark_connector.errors import OptionError
from spark_connector.options import schema


def test_ddl_of_all_and_of_some() -> None:
    assert schema.schema_ddl(()).startswith("topic string, mqttTopic string")
    assert schema.schema_ddl(["BODY", "queueOffset"]) == "body binary, queueOffset bigint"
    with pytest.raises(OptionError, match="did you mean 'queueOffset'"):
        schema.schema_ddl(["queueOfset"])


def test_a_given_schema_is_checked() -> None:
    assert schema.check_projection([("body", "binary"), ("queueoffset", "bigint")]) == ("body", "queueOffset")
    with pytest.raises(OptionError, match="'body' is binary, not string"):
        schema.check_projection([("body", "string")])


def test_nothing_near_names_nothing() -> None:
    assert schema.nearest("zzzz", ["topic"]) == ""


def test_other_names_and_the_map_left_out() -> None:
    assert schema.schema_ddl(["BROKERNAME", "userProperties"]) == "brokerName string, userProperties map<string,string>"
    assert schema.check_projection([("tags", "string")]) == ("tags",)
    assert "properties" not in schema.schema_ddl((), properties=False)
    assert schema.schema_ddl(()).count(",") == schema.schema_ddl((), properties=False).count(",") + 2
