"""Reasons: where in a body, in one short line."""

from __future__ import annotations

import pytest

from spark_connector.errors import REASON_CHARACTERS_MAX, Mismatch, OptionError, need, shorten


def test_a_path_grows_from_the_inside() -> None:
    mismatch = Mismatch("a number", "null").within("[3]").within("b").within("a")
    assert str(mismatch) == "a.b[3]: a number is needed, not null"


def test_reasons_are_one_short_line() -> None:
    assert shorten("a\n  b") == "a b"
    assert len(shorten("x" * 1000)) == REASON_CHARACTERS_MAX


def test_present_and_missing_packages() -> None:
    assert need("json", "json").loads("1") == 1
    with pytest.raises(OptionError, match=r"avro needs the package 'nowhere' .* pip install nowhere"):
        need("nowhere.schema", "avro")
