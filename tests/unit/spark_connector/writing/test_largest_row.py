"""The row that a broker found too large."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from remoting.protocol.frames.codes import ResponseCode
from spark_connector.errors import BrokerRefused, OptionError
from spark_connector.writing.writer import LargestRow

BODY = "refused: code 13: the message body of 9 bytes exceeds 8"
PROPERTIES = "refused: code 13: 40001 bytes of properties exceed 32767"
MAP = pa.map_(pa.string(), pa.string())


def largest_of_two_batches(columns: dict[str, str]) -> LargestRow:
    """Of three rows and a later one; the second has no body, the third the most properties."""
    largest = LargestRow(columns)
    properties = pa.array([[("a", "1")], None, [("ab", "123"), ("b", None)], [("a", "22")]], MAP)
    keys = pa.array(["k0", "k1", "k2", "k3"])
    first = {"body": pa.array([b"123456789", None, b"1"]), "key": keys[:3], "properties": properties[:3]}
    largest.note(first)
    largest.note({"body": pa.array(["12"]), "key": keys[3:], "properties": properties[3:]})
    return largest


@pytest.mark.parametrize(
    ("refusal", "columns", "says"),
    [
        (BODY, {"body": "value"}, f"column 'value' holds 9 bytes in the row with key 'k0': {BODY}"),
        (PROPERTIES, {"body": "body"}, f"column 'properties' holds 6 bytes in the row with key 'k2': {PROPERTIES}"),
        (PROPERTIES, {"body": "body", "headers": "headers"}, "column 'headers' holds 6 bytes in the row with key 'k2'"),
    ],
)
def test_column_and_key_are_named(refusal: str, columns: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=re.escape(says)), largest_of_two_batches(columns).named():
        raise BrokerRefused(refusal, ResponseCode.MESSAGE_ILLEGAL)


@pytest.mark.parametrize(
    "other", [BrokerRefused("no permission", ResponseCode.NO_PERMISSION), BrokerRefused("odd", 13)], ids=str
)
def test_other_refusals_are_left_alone(other: BrokerRefused) -> None:
    with pytest.raises(BrokerRefused) as raised, LargestRow({"body": "body"}).named():
        raise other
    assert raised.value is other
