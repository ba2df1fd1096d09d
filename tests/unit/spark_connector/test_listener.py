"""The listener with reports as Spark makes them: states, the page of metrics, ended queries, other sources."""

from __future__ import annotations

import http.client
import json
import re
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from spark_connector.listener import (
    ERROR_CHARACTERS_MAX,
    QueueLag,
    RocketMQProgressListener,
    error_text,
    progress_lags,
)
from spark_connector.queues import QueueKey
from spark_connector.reading.offsets import StreamOffset, to_json

RUN, QUERY = uuid.uuid4(), uuid.uuid4()
NOW = "2026-01-01T00:00:00.000Z"
KEYS = [QueueKey("t", "broker-a", number) for number in range(2)]
LABELS = ("query", "statistic", "topic", "broker", "queue")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "spark-progress.md"


def progress(end: list[int], latest: list[int], *, name: str | None = "q", **more: Any) -> StreamingQueryProgress:
    waits = {KEYS[0]: 2_000} if latest[0] > end[0] else None
    source = {
        "description": "rocketmq",
        "startOffset": "{}",
        "endOffset": json.dumps(to_json(StreamOffset(dict(zip(KEYS, end, strict=True))))),
        "latestOffset": json.dumps(to_json(StreamOffset(dict(zip(KEYS, latest, strict=True)), waiting_ms=waits))),
        "numInputRows": 7,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "metrics": {},
    }
    return StreamingQueryProgress.fromJson(
        {
            "id": str(QUERY), "runId": str(RUN), "name": name, "timestamp": NOW, "batchId": 1, "batchDuration": 40,
            "durationMs": {"triggerExecution": 50}, "eventTime": {}, "stateOperators": [], "sources": [source],
            "sink": {"description": "s", "numOutputRows": 7, "metrics": {}}, "numInputRows": 7,
            "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0, "observedMetrics": {},
        }
        | more
    )  # fmt: skip


def samples(listener: RocketMQProgressListener) -> dict[tuple[str, ...], float]:
    found = {}
    for family in text_string_to_metric_families(listener.exposition().decode()):
        for sample in family.samples:
            labels = [sample.labels[name] for name in LABELS if name in sample.labels]
            found[(sample.name, *labels)] = sample.value
    return found


def running() -> RocketMQProgressListener:
    listener = RocketMQProgressListener()
    listener.onQueryStarted(QueryStartedEvent(QUERY, RUN, "q", NOW, set()))
    listener.onQueryProgress(QueryProgressEvent(progress([5, 3], [9, 3])))
    return listener


def test_lag_and_pace_of_a_running_query() -> None:
    listener = running()
    state = listener.queries()["q"]
    assert (state.messages_behind, state.seconds_behind, state.rows, state.batches) == (4, 2.0, 7, 1)
    assert state.batch_seconds == 0.05
    page = samples(listener)
    assert page["rocketmq_spark_queries",] == 1
    assert page["rocketmq_spark_messages_behind", "q"] == 4
    assert page["rocketmq_spark_offsets_behind_latest", "q", "max"] == 4
    assert page["rocketmq_spark_queue_messages_behind", "q", "t", "broker-a", "0"] == 4
    assert page["rocketmq_spark_queue_seconds_behind", "q", "t", "broker-a", "0"] == 2.0
    assert page["rocketmq_spark_rows_total", "q"] == 7
    assert page["rocketmq_spark_lost_messages_total", "q"] == 0
    listener.onQueryProgress(QueryProgressEvent(progress([9, 3], [9, 3])))
    listener.onQueryIdle(QueryIdleEvent(QUERY, RUN, NOW))
    page = samples(listener)
    assert page["rocketmq_spark_seconds_behind", "q"] == 0
    assert page["rocketmq_spark_rows_total", "q"] == 14


def test_ended_queries_are_not_shown_and_failures_counted() -> None:
    listener = running()
    listener.onQueryTerminated(QueryTerminatedEvent(QUERY, RUN, "it broke", None))
    page = samples(listener)
    assert page["rocketmq_spark_queries",] == 0
    assert page["rocketmq_spark_query_failures_total",] == 1
    assert not any("q" in key[1:] for key in page)


def test_a_query_that_ran_before_the_listener_and_has_no_name() -> None:
    listener = RocketMQProgressListener()
    listener.onQueryProgress(QueryProgressEvent(progress([1, 1], [1, 1], name=None, sources=[])))
    assert listener.queries()[str(QUERY)].lags == []
    assert progress_lags(progress([1, 1], [2, 1]))[0] == QueueLag(KEYS[0], 1, 2.0)


def test_the_page_over_http() -> None:
    listener = running()
    with urllib.request.urlopen(f"http://127.0.0.1:{listener.serve(0)}/metrics") as answer:
        assert b"rocketmq_spark_messages_behind" in answer.read()


@pytest.mark.parametrize(("host", "status"), [("localhost:1", 200), ("10.0.0.9", 200), ("evil.example:9108", 403)])
def test_a_web_page_that_points_its_name_here_reads_nothing(host: str, status: int) -> None:
    """DNS rebinding: the browser sends the attacker's name."""
    connection = http.client.HTTPConnection("127.0.0.1", running().serve(0), timeout=20)
    connection.request("GET", "/metrics", headers={"Host": host})
    answer = connection.getresponse()
    assert answer.status == status
    assert (b"rocketmq_spark" in answer.read()) == (status == 200)
    connection.close()


def test_the_document_names_exactly_what_is_shown() -> None:
    documented = re.findall(r"^\| `(rocketmq_spark_\w+)` \|", PAGE.read_text(), re.MULTILINE)
    shown = {re.sub(r"_created$", "", name) for name, *_ in samples(running())}
    assert sorted(documented) == sorted(shown)


def test_the_end_of_an_error_is_reported_without_frames_of_java() -> None:
    """The cause of a Python traceback is its last line, however long the rest is."""
    text = (
        "py4j.Py4JException: Traceback:\n" + "  File\n" * 400 + "ValueError: no\n\n\tat py4j.Protocol.get(P.java:4)\n"
    )
    found = error_text(text)
    assert found.startswith("…")
    assert found.endswith("\nValueError: no")
    assert len(found) == ERROR_CHARACTERS_MAX
    assert error_text("the sink is full") == "the sink is full"
