"""Readers are asked while they answer; the broker is asked for good after that."""

from __future__ import annotations

from remoting.transport.failures import ConnectionLost, RequestTimeout
from spark_connector.places import FAILURES_MAX, TIMEOUT_MS_MAX, NotAnswered, Places

BROKER, READER = ("b", 1), ("r", 2)


def test_readers_come_first_and_may_lose_a_connection() -> None:
    places = Places({"a": BROKER, "z": ("z", 9)}, {"a": READER})
    assert (places.of("a"), places.is_reader("a"), places.of("z"), places.is_reader("z")) == (
        READER,
        True,
        ("z", 9),
        False,
    )
    assert places.timeout_ms("a", 20_000) == TIMEOUT_MS_MAX
    assert places.timeout_ms("z", 20_000) == 20_000
    for _ in range(FAILURES_MAX):
        assert places.of("a") == READER
        places.reader_failed("a", ConnectionLost("gone"))
    assert (places.of("a"), places.is_reader("a"), places.timeout_ms("a", 20_000)) == (BROKER, False, 20_000)


def test_a_useless_answer_and_a_silence_end_it_at_once() -> None:
    for failure in (NotAnswered("x"), RequestTimeout(1, "r:2", 5)):
        places = Places({"a": BROKER}, {"a": READER})
        places.reader_failed("a", failure)
        assert places.of("a") == BROKER


def test_brokers_that_moved() -> None:
    places = Places({"a": BROKER, "z": BROKER}, {})
    places.brokers_moved({"a": ("new", 3)})
    assert (places.of("a"), places.of("z")) == (("new", 3), BROKER)
    places.brokers_moved({"": ("only", 4)})
    assert places.of("z") == ("only", 4)


def test_the_broker_stays_the_authority() -> None:
    places = Places({"b": ("h", 1)}, {"b": ("r", 2)})
    assert (places.of("b"), places.authority("b")) == (("r", 2), ("h", 1))
