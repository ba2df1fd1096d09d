"""The errors belong to the project's families."""

from __future__ import annotations

from remoting.protocol.errors import LightMQError, LocalMisuse
from spark_connector import errors


def test_families() -> None:
    assert issubclass(errors.OptionError, LocalMisuse)
    for kind in (errors.BrokerUnreachable, errors.BrokerRefused, errors.DataLost, errors.BrokenRecord):
        assert issubclass(kind, LightMQError)
        assert not issubclass(kind, LocalMisuse)
