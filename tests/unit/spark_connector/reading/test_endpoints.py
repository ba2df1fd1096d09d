"""Readers are asked while they answer; the broker is asked for good after that."""

from __future__ import annotations

from remoting.transport.failures import ConnectionLost, RequestTimeout
from spark_connector.reading.fetch import FAILURES_MAX, TIMEOUT_MS_MAX, NotAnswered, TaskEndpoints

BROKER, READER = ("b", 1), ("r", 2)


def test_readers_come_first_and_may_lose_a_connection() -> None:
    endpoints = TaskEndpoints({"a": BROKER, "z": ("z", 9)}, {"a": READER})
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
        endpoints = TaskEndpoints({"a": BROKER}, {"a": READER})
        endpoints.reader_failed("a", failure)
        assert endpoints.of("a") == BROKER


def test_brokers_that_moved() -> None:
    """Each is where its link says; while that says nothing, where it was last."""
    endpoints = TaskEndpoints({"a": BROKER, "z": BROKER}, {})
    endpoints.link("a").told("new:3", 1)
    assert (endpoints.of("a"), endpoints.of("z")) == (("new", 3), BROKER)
    endpoints.link("a").told("", 2)
    assert endpoints.of("a") == ("new", 3)


def test_the_broker_stays_the_authority() -> None:
    endpoints = TaskEndpoints({"b": ("h", 1)}, {"b": ("r", 2)})
    assert (endpoints.of("b"), endpoints.authority("b")) == (("r", 2), ("h", 1))
