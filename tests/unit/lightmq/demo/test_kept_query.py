"""A query of the demo that fails in passing goes on; one that is given up says so in one sentence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from lightmq.demo.query import KeptQuery
from lightmq.spark_session import restarts

SLOW_WORKER = (
    "Python worker failed to connect back.\n=== Streaming Query ===\nIdentifier: commands [id = 1]\n  at org.apache.X"
)


class Query:
    """A streaming query that runs until it is stopped or made to fail."""

    id = "one"

    def __init__(self) -> None:
        self.recentProgress: list[Any] = []
        self.failure: Exception | None = None
        self.drains = 0
        self._ended = threading.Event()

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        ended = self._ended.wait(timeout)
        if self.failure is not None:
            raise self.failure
        return ended

    def processAllAvailable(self) -> None:  # noqa: N802
        self.drains += 1
        if self.failure is not None:
            raise self.failure

    def fail(self, error: Exception) -> None:
        self.failure = error
        self._ended.set()

    def stop(self) -> None:
        self._ended.set()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> tuple[KeptQuery, list[Query], list[dict[str, object]]]:
    """A kept query, the queries that were started for it, and what it said."""
    monkeypatch.setattr(restarts, "_activate_session", lambda: None)
    monkeypatch.setattr(restarts, "PAUSE_S", 0.01)
    queries: list[Query] = []
    said: list[dict[str, object]] = []

    def start() -> Query:
        queries.append(Query())
        return queries[-1]

    subject = KeptQuery("commands", start, lambda **event: said.append(event))
    subject.begin()
    until(lambda: len(queries) == 1)
    return subject, queries, said


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_worker_that_was_too_slow_is_one_sentence(begun) -> None:
    """Not Spark's stack trace; the next query goes on."""
    subject, queries, said = begun
    queries[0].fail(RuntimeError(SLOW_WORKER))
    until(lambda: len(queries) == 2)
    (event,) = said
    assert (event["event"], event["query"]) == ("restarted", "commands")
    text = str(event["text"])
    assert "failed to connect back" in text
    assert "checkpoint" in text
    assert "\n" not in text
    assert "Identifier" not in text
    subject.stop()
    assert subject.failed is None


def test_a_drain_goes_on_with_the_next_query(begun) -> None:
    """What the failed one did not process is processed by its successor."""
    subject, queries, _ = begun
    queries[0].failure = RuntimeError(SLOW_WORKER)
    drain = threading.Thread(target=subject.drain)
    drain.start()
    until(lambda: queries[0].drains == 1)
    queries[0].fail(queries[0].failure)
    drain.join(30)
    assert not drain.is_alive()
    assert queries[1].drains == 1
    subject.stop()


def test_what_a_restart_does_not_mend_is_given_up(begun) -> None:
    """Waiting for its batches and for a drain ends then."""
    subject, queries, said = begun
    queries[0].fail(ValueError("no such column"))
    assert not subject.await_first_batch()
    subject.drain()
    assert said == [{"event": "failed", "query": "commands", "error": "no such column"}]
    assert subject.failed == "no such column"
    subject.stop()


@pytest.mark.parametrize("allowed", [0, 1])
def test_it_is_started_again_as_often_as_it_was_told(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    """A failure for the moment, each time."""
    monkeypatch.setattr(restarts, "_activate_session", lambda: None)
    monkeypatch.setattr(restarts, "PAUSE_S", 0.01)
    starts: list[int] = []

    def start() -> Query:
        starts.append(len(starts))
        raise RuntimeError(SLOW_WORKER)

    subject = KeptQuery("bounded", start, lambda **_: None, restarts_max=allowed)
    subject.begin()
    until(lambda: subject.failed is not None)
    subject.stop()
    assert starts == list(range(allowed + 1))


def test_the_first_batch_is_awaited(begun) -> None:
    """Of whichever query makes it."""
    subject, queries, _ = begun
    assert not subject.await_first_batch(timeout_s=0.01)
    queries[0].recentProgress.append("batch 0")
    assert subject.await_first_batch()
    assert subject.progress() == ["batch 0"]
    subject.stop()


def test_a_drain_does_not_wait_for_a_query_that_was_never_begun() -> None:
    KeptQuery("windows", Query, lambda **_: None).drain()
