"""The output of the driver process and its obedience; the queries themselves run in the process tests."""

from __future__ import annotations

import argparse
import io
import json
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row

from lightmq import spark_session
from lightmq.demo import query
from lightmq.demo.query import AnomalyProcessor, KeptQuery
from lightmq.demo.rule import WARM_UP_READINGS


def fake_query() -> SimpleNamespace:
    """The parts of a kept query that `report` and `serve` use."""
    progress = [
        SimpleNamespace(batchId=number, numInputRows=10 * (number + 1), durationMs={"triggerExecution": 7})
        for number in range(2)
    ]
    calls: list[str] = []
    return SimpleNamespace(
        name="ledger",
        failed=None,
        progress=lambda: progress,
        begin=lambda: calls.append("begin"),
        await_first_batch=lambda: True,
        drain=lambda: calls.append("drain"),
        stop=lambda: calls.append("stop"),
        calls=calls,
    )


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """Events printed so far."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_each_batch_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The same progress read twice reports nothing new."""
    seen: dict[str, tuple[int, int]] = {}
    query.report([fake_query()], seen)
    assert [(event["batch"], event["rows"], event["total"]) for event in said(capsys)] == [(0, 10, 10), (1, 20, 30)]
    query.report([fake_query()], seen)
    assert said(capsys) == []


def test_drain_then_stop(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders are answered in order, a drain when every query was begun; the end of input stops too."""
    subject = fake_query()
    monkeypatch.setattr(sys, "stdin", io.StringIO("drain\n"))
    query.serve([subject], lambda _: subject.begin())
    assert subject.calls == ["begin", "drain", "stop"]
    assert [event["event"] for event in said(capsys)] == ["batch", "batch", "drained", "stopped"]


def test_other_orders_are_carried_out_and_answered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(sys, "stdin", io.StringIO("batch\nunknown\n"))
    query.serve([], lambda _: None, {"batch": lambda: done.append("batch")})
    assert done == ["batch"]
    assert [event["event"] for event in said(capsys)] == ["batch done", "stopped"]


def test_queries_begin_one_by_one_and_the_first_makes_it_ready(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is named while its first batch is made; one that was given up is not reported ready."""
    first, second = fake_query(), fake_query()
    query.begin([first, second], "4.x", threading.Event())
    assert [event["event"] for event in said(capsys)] == ["step", "ready", "step", "complete"]
    first.await_first_batch = lambda: False
    query.begin([first], "4.x", threading.Event())
    assert [event["event"] for event in said(capsys)] == ["step", "complete"]
    stopping = threading.Event()
    stopping.set()
    query.begin([second], "4.x", stopping)
    assert said(capsys) == []


def test_after_a_query_that_was_given_up_none_is_begun(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = fake_query(), fake_query()
    first.failed, first.await_first_batch = "no broker", lambda: False
    query.begin([first, second], "4.3", threading.Event())
    assert (first.calls, second.calls) == (["begin"], [])
    assert [event["event"] for event in said(capsys)] == ["step", "complete"]


def test_rows_come_first() -> None:
    """The query that needs no state in Python makes the first batch soonest."""
    options = argparse.Namespace(out="out", nameserver="n", host="h", trigger="1 second", window="1 s", watermark="1 s")
    assert list(query.writers(None, options)) == ["ledger", "windows", "commands"]


def test_arguments_are_required(capsys: pytest.CaptureFixture[str]) -> None:
    """Without an address there is nothing to read."""
    with pytest.raises(SystemExit):
        query.main([])
    assert "--nameserver" in capsys.readouterr().err


def test_a_prepared_driver_ends_without_arguments(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order to stop comes in their place, or the demo's end: the session is stopped, and nothing is read."""
    stopped: list[object] = []
    archive = SimpleNamespace(stop=stopped.append)
    monkeypatch.setattr(query, "short_session", lambda _: ("session", archive))
    for line in ("stop\n", ""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(line))
        assert query.main(["--later"]) == 0
    assert stopped == ["session"] * 2
    assert [event["event"] for event in said(capsys)] == ["stopped"] * 2


class KeptState:
    """Spark's value state as the processor uses it."""

    def __init__(self) -> None:
        self._value: tuple[Any, ...] | None = None

    def exists(self) -> bool:
        return self._value is not None

    def get(self) -> tuple[Any, ...] | None:
        return self._value

    def update(self, value: tuple[Any, ...]) -> None:
        self._value = value


class Handle:
    """Hands out the state."""

    def __init__(self) -> None:
        self.state = KeptState()

    def getValueState(self, name: str, schema: str) -> KeptState:  # noqa: N802
        assert (name, schema.count(",")) == ("sensor", 3)
        return self.state


def reading(offset: int, value: float) -> Row:
    """One row of the query."""
    return Row(id=f"d-{offset}", value=value, queueOffset=offset, sent_ms=offset, time_ms=offset)


def test_commands_do_not_depend_on_batches_or_row_order() -> None:
    """The same readings in one batch, or reversed in two: the same commands."""
    values = [10 + 0.1 * (index % 3) for index in range(WARM_UP_READINGS + 10)] + [60.0] * 3
    rows = [reading(offset, value) for offset, value in enumerate(values)]
    found = []
    for batches in ([rows], [rows[:17][::-1], rows[17:][::-1]]):
        processor = AnomalyProcessor()
        processor.init(Handle())
        found.append(
            [row.asDict() for batch in batches for row in processor.handleInputRows(("heat",), iter(batch), None)]
        )
        processor.close()
    assert found[0] == found[1]
    assert [command["reading"] for command in found[0]] == [f"d-{WARM_UP_READINGS + 10}"]
    assert found[0][0]["sensor"] == "heat"


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
    """A kept query, the queries that were started for it, and its output."""
    monkeypatch.setattr(spark_session, "_activate_session", lambda: None)
    monkeypatch.setattr(spark_session, "PAUSE_S", 0.01)
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
    """Not Spark's stack trace; the next query continues."""
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


def test_a_drain_continues_with_the_next_query(begun) -> None:
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


def test_what_a_restart_does_not_fix_is_given_up(begun) -> None:
    """Waiting for its batches and for a drain ends then."""
    subject, queries, said = begun
    queries[0].fail(ValueError("no such column"))
    assert not subject.await_first_batch()
    subject.drain()
    assert said == [{"event": "failed", "query": "commands", "error": "no such column", "lost": False}]
    assert subject.failed == "no such column"
    subject.stop()


@pytest.mark.parametrize("allowed", [0, 1])
def test_it_is_restarted_as_often_as_allowed(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    """A temporary failure, each time."""
    monkeypatch.setattr(spark_session, "_activate_session", lambda: None)
    monkeypatch.setattr(spark_session, "PAUSE_S", 0.01)
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
