"""The columns of Sparkplug."""

from __future__ import annotations

from spark_connector.decode.sparkplug.payload import plan_sparkplug
from spark_connector.options.schema import ALIASES, COLUMN_TYPES


def test_no_column_hides_a_message_column() -> None:
    fields, detail = plan_sparkplug()
    assert detail is None
    assert "metrics" in fields.names
    assert not {name.lower() for name in fields.names} & {name.lower() for name in (*COLUMN_TYPES, *ALIASES)}
