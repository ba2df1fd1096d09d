"""Fixtures of the connector's unit tests: a toy broker and options that point to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from spark_connector.brokers import POOL
from spark_connector.options.read_write import ReadOptions, WriteOptions, parse_read, parse_write
from tests.unit.spark_connector.toy_broker import ToyBroker


@pytest.fixture(autouse=True)
def no_connections_of_other_tests() -> Iterator[None]:
    """A free port may be one that an earlier toy broker had."""
    yield
    POOL.close()


@pytest.fixture
def broker() -> Iterator[ToyBroker]:
    """A broker of lists on a free port."""
    toy = ToyBroker()
    yield toy
    toy.close()


@pytest.fixture
def read_options(broker: ToyBroker) -> Callable[..., ReadOptions]:
    """Options that read from the toy broker."""
    host, port = broker.address
    return lambda **given: parse_read(
        {"nameserver": f"{host}:{port}", "fetchretryintervalms": "1", "brokerwaitms": "0", **given}
    )


@pytest.fixture
def write_options(broker: ToyBroker) -> Callable[..., WriteOptions]:
    """Options that write to the toy broker without waiting."""
    host, port = broker.address
    usual = {"nameserver": f"{host}:{port}", "fetchretryintervalms": "1", "brokerwaitms": "0"}
    return lambda **given: parse_write(usual | given)
