"""The row that a broker found too large."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from remoting.protocol.codes import ResponseCode
from spark_connector.errors import BrokerRefused, OptionError
from spark_connector.largest import LargestBody

REFUSAL = BrokerRefused("refused: code 13: the message body of 9 bytes exceeds 8", ResponseCode.MESSAGE_ILLEGAL)


def test_column_and_key_are_named() -> None:
    largest = LargestBody("value")
    largest.look({"body": pa.array([b"123456789", None, b"1"]), "key": pa.array(["k0", "k1", "k2"])})
    largest.look({"body": pa.array(["12"]), "key": pa.array(["later"])})
    says = (
        "column 'value' holds 9 bytes in the row with key 'k0': refused: code 13: the message body of 9 bytes exceeds"
    )
    with pytest.raises(OptionError, match=re.escape(says)), largest.named():
        raise REFUSAL


def test_other_refusals_are_left_alone() -> None:
    other = BrokerRefused("no permission", ResponseCode.NO_PERMISSION)
    with pytest.raises(BrokerRefused) as raised, LargestBody("body").named():
        raise other
    assert raised.value is other
