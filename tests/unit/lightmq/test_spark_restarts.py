"""When a query is restarted, how often, and what is logged; real sessions do it in tests/interop."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException, StreamingQueryException

from lightmq import spark_session
from lightmq.spark import run_forever

FRAME = "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: "
SLOW = f"{FRAME}Python worker failed to connect back. SQLSTATE: XXKST"
KILLED = """[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: Job aborted due to stage failure.
Traceback (most recent call last):
  File "worker.py", line 3, in main
spark_connector.errors.BrokerUnreachable: 127.0.0.1:9876 does not answer
"""


class Query:
    """Ends at once: with an error, or (None) as one that was stopped."""

    def __init__(self, error: Exception | None, query_id: str = "one") -> None:
        self.error = error
        self.id = query_id
        self.stopped = False

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - Spark's name
        """As Spark's."""
        if self.error is not None:
            raise self.error
        return True

    def stop(self) -> None:
        """As Spark's."""
        self.stopped = True


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, without making them."""
    made: list[float] = []
    monkeypatch.setattr(spark_session.time, "sleep", made.append)
    return made


def starter(*outcomes: Any) -> Callable[[], Any]:
    """`start` that gives one after the other: a query, None or an error of a query, or an error of its own."""
    left = iter(outcomes)

    def start() -> Any:
        outcome = next(left)
        if isinstance(outcome, Query):
            return outcome
        if isinstance(outcome, Exception) and not isinstance(outcome, StreamingQueryException):
            raise outcome
        return Query(outcome)

    return start


def test_a_query_that_ends_is_not_restarted(pauses: list[float]) -> None:
    said: list[str] = []
    run_forever(starter(None), say=said.append)
    assert said == []
    assert pauses == []


def test_each_restart_is_logged_with_its_cause_and_pauses_grow(pauses: list[float]) -> None:
    said: list[str] = []
    run_forever(
        starter(StreamingQueryException(SLOW), StreamingQueryException(KILLED), None), say=said.append, within_s=60
    )
    first, second = said
    assert first == (
        "The query failed: Python worker failed to connect back. "
        "It restarts from its checkpoint in 1 s (restart 1 of at most 10 in 60 s)."
    )
    assert second == (
        "The query failed: spark_connector.errors.BrokerUnreachable: 127.0.0.1:9876 does not answer. "
        "It restarts from its checkpoint in 2 s (restart 2 of at most 10 in 60 s)."
    )
    assert pauses == [1.0, 2.0]


def test_pauses_have_a_longest(pauses: list[float]) -> None:
    failures = [StreamingQueryException(SLOW)] * 8
    run_forever(starter(*failures, None), say=lambda text: None)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_start_that_was_too_slow_is_repeated() -> None:
    said: list[str] = []
    run_forever(starter(AnalysisException("Python worker failed to connect back."), None), say=said.append)
    assert len(said) == 1


def test_too_many_restarts_raise_the_last_error() -> None:
    failures = [StreamingQueryException(f"{SLOW} {number}") for number in range(4)]
    said: list[str] = []
    with pytest.raises(StreamingQueryException) as raised:
        run_forever(starter(*failures), restarts_max=3, say=said.append)
    assert raised.value is failures[3]
    assert said[-1].endswith("Given up after 3 restarts in 600 s.")


def test_only_restarts_within_the_time_count(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = itertools.count(0, 100)
    monkeypatch.setattr(spark_session.clock, "monotonic_s", lambda: float(next(moments)))
    run_forever(starter(*[StreamingQueryException(SLOW)] * 5, None), restarts_max=1, within_s=99, say=lambda text: None)


@pytest.mark.parametrize(
    "error",
    [
        AnalysisException("[UNRESOLVED_COLUMN] no column 'a'"),
        StreamingQueryException("x\nspark_connector.errors.OptionError: unknown option 'mqttFiltr'"),
        StreamingQueryException("x\nspark_connector.errors.DataLost: offsets 3 to 5 are gone"),
        StreamingQueryException("org.apache.spark.sql.AnalysisException: no table t"),
        StreamingQueryException("SparkContext was shut down"),
        Py4JNetworkError("Answer from Java side is empty"),
        KeyError("MASTER"),
    ],
    ids=lambda error: str(error)[:30],
)
def test_what_a_restart_does_not_fix_is_raised_at_once(error: Exception) -> None:
    said: list[str] = []
    outcome = Query(error) if isinstance(error, StreamingQueryException) else error
    with pytest.raises(type(error)) as raised:
        run_forever(starter(outcome, None), say=said.append)
    assert raised.value is error
    assert said == []


def test_words_of_the_query_s_plan_decide_nothing() -> None:
    text = f"{SLOW}\n=== Streaming Query ===\nProject [AnalysisException AS a]"
    assert spark_session.is_transient(StreamingQueryException(text))
    assert not spark_session.is_transient(AnalysisException("x === Streaming Query === failed to connect back"))


def test_a_query_without_a_checkpoint_is_given_up() -> None:
    failed, anew = StreamingQueryException(SLOW), Query(None, "two")
    said: list[str] = []
    with pytest.raises(StreamingQueryException) as raised:
        run_forever(starter(failed, anew), say=said.append)
    assert raised.value is failed
    assert anew.stopped
    assert "no checkpoint of its own" in said[-1]


def test_stop_ends_the_query_and_the_restarts() -> None:
    stop = Event()

    class Running(Query):
        def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - Spark's name
            """Runs until it is stopped."""
            assert timeout
            stop.set()
            return False

    query = Running(None)
    run_forever(starter(query), stop=stop)
    assert query.stopped
    run_forever(starter(), stop=stop)


def test_an_interrupt_stops_the_query() -> None:
    class Interrupted(Query):
        def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - Spark's name
            """Ctrl-C."""
            raise KeyboardInterrupt

    query = Interrupted(None)
    with pytest.raises(KeyboardInterrupt):
        run_forever(starter(query))
    assert query.stopped


def test_a_long_cause_is_cut() -> None:
    cause = spark_session.cause_of(ValueError("x" * 1000))
    assert len(cause) == spark_session.CAUSE_LENGTH_MAX + 1
    assert spark_session.cause_of(ValueError()) == "ValueError"


def test_a_lost_session_is_told_from_a_failed_query() -> None:
    """Nothing can be started in it again: its Java has ended, or refuses connections because it has."""
    assert spark_session.is_session_lost(ConnectionRefusedError(111, "Connection refused"))
    assert spark_session.is_session_lost(RuntimeError("Answer from Java side is empty"))
    assert not spark_session.is_session_lost(RuntimeError("Python worker exited unexpectedly"))
