"""Readers are asked while they answer; the broker is asked for good after that."""

from __future__ import annotations

from remoting.transport.failures import ConnectionLost, RequestTimeout
from spark_connector.brokers.masters import masters_at
from spark_connector.options.read_write import parse_read
from spark_connector.reading.fetch import FAILURES_MAX, TIMEOUT_MS_MAX, NotAnswered, TaskEndpoints

BROKER, READER = ("b", 1), ("r", 2)


def endpoints_at(brokers: dict[str, tuple[str, int]], readers: dict[str, tuple[str, int]]) -> TaskEndpoints:
    """The endpoints of a task whose brokers were last at these addresses."""
    return TaskEndpoints(masters_at(brokers, parse_read({"topic": "t"})), readers)


def test_readers_come_first_and_may_lose_a_connection() -> None:
    endpoints = endpoints_at({"a": BROKER, "z": ("z", 9)}, {"a": READER})
    assert (endpoints.of("a"), endpoints.is_reader("a"), endpoints.of("z"), endpoints.is_reader("z")) == (
        READER,
        True,
        ("z", 9),
        False,
    )
    assert endpoints.timeout_ms("a", 20_000) == TIMEOUT_MS_MAX
    assert endpoints.timeout_ms("z", 20_000) == 20_000
    for _ in range(FAILURES_MAX):
        assert endpoints.of("a") == READER
        endpoints.reader_failed("a", ConnectionLost("gone"))
    assert (endpoints.of("a"), endpoints.is_reader("a"), endpoints.timeout_ms("a", 20_000)) == (BROKER, False, 20_000)


def test_a_useless_answer_and_a_silence_end_it_at_once() -> None:
    for failure in (NotAnswered("x"), RequestTimeout(1, "r:2", 5)):
        endpoints = endpoints_at({"a": BROKER}, {"a": READER})
        endpoints.reader_failed("a", failure)
        assert endpoints.of("a") == BROKER


def test_the_broker_stays_the_authority() -> None:
    endpoints = endpoints_at({"b": ("h", 1)}, {"b": ("r", 2)})
    assert (endpoints.of("b"), endpoints.masters["b"].address) == (("r", 2), ("h", 1))
