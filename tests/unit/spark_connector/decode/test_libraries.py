"""A missing library is named with the command that installs it."""

from __future__ import annotations

import pytest

from spark_connector.decode.libraries import need
from spark_connector.errors import OptionError


def test_what_is_there_and_what_is_not() -> None:
    assert need("json", "json").loads("1") == 1
    with pytest.raises(OptionError, match=r"avro needs the package 'nowhere' .* pip install nowhere"):
        need("nowhere.schema", "avro")
