"""Rows on their way through a query: sampled ones get a span and go on as its children, the rest is untouched."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from remoting.protocol.errors import LocalMisuse
from remoting.tracing.context import parse
from remoting.tracing.spans import Tracer
from spark_connector.row_spans import RowSpans, trace_rows
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.ports import free_port

SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = SAMPLED[:-1] + "0"
MAP = pa.map_(pa.string(), pa.string())
STORED = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)
MAKER = RowSpans("hot", "http://127.0.0.1:1", "spark")


def rows(parents: list[str | None], **more: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(
        {"body": pa.array([b"x"] * len(parents)), "traceparent": pa.array(parents, pa.string())} | more
    )


def test_only_sampled_rows_change_and_their_spans_know_the_message() -> None:
    tracer = Tracer()
    given = rows(
        [None, SAMPLED, UNSAMPLED, "nonsense", SAMPLED],
        storeTimestamp=pa.array([STORED] * 5, pa.timestamp("us", tz="UTC")),
        properties=pa.array([[], [("tracestate", "a=1")], [], [], [("tracestate", "b" * 600)]], MAP),
        mqttTopic=pa.array(["plant/7", "plant/7", "plant/7", "plant/7", None]),
        topic=pa.array(["plant"] * 5),
    )
    found = MAKER.traced(given, tracer)
    assert found.schema == given.schema
    assert found.drop_columns(["traceparent"]) == given.drop_columns(["traceparent"])
    parents = found.column("traceparent").to_pylist()
    assert (parents[0], parents[2], parents[3]) == (None, UNSAMPLED, "nonsense")
    first, last = tracer.take(9)
    for parent, span in ((parents[1], first), (parents[4], last)):
        context = parse(parent.encode())
        assert context is not None
        assert (context.trace_id, context.span_id, context.sampled) == (span.trace_id, span.span_id, True)
        assert (span.name, span.parent_id) == ("process hot", 0x00F067AA0BA902B7)
        assert span.start_ns == int(STORED.timestamp()) * 10**9 + 678_901_000 < span.end_ns
    assert (first.state, last.state) == ("a=1", "")
    names = [span.attributes["messaging.destination.name"] for span in (first, last)]
    assert names == ["plant/7", "plant"]


def test_without_more_columns_a_span_is_a_moment() -> None:
    tracer = Tracer()
    MAKER.traced(rows([SAMPLED]), tracer)
    (span,) = tracer.take(2)
    assert span.start_ns == span.end_ns
    assert "messaging.destination.name" not in span.attributes


def test_rows_without_sampled_contexts_are_the_same_batch() -> None:
    for given in (rows([]), rows([None, None]), rows([UNSAMPLED])):
        assert MAKER.traced(given, Tracer()) is given


def test_rows_without_a_context_begin_a_trace_as_often_as_the_ratio_says() -> None:
    tracer = Tracer(root_ratio=1.0)
    found = MAKER.traced(rows([None, UNSAMPLED, "nonsense"]), tracer).column("traceparent").to_pylist()
    spans = tracer.take(9)
    assert [parse(each.encode()).span_id for each in (found[0], found[2])] == [each.span_id for each in spans]  # type: ignore[union-attr]
    assert found[1] == UNSAMPLED
    assert len({span.trace_id for span in spans}) == 2


def test_a_span_that_found_no_room_is_nobodys_parent() -> None:
    tracer = Tracer(queue_spans_max=0)
    assert MAKER.traced(rows([SAMPLED]), tracer).column("traceparent").to_pylist() == [SAMPLED]
    assert tracer.dropped == 1


def test_a_task_has_its_spans_sent_before_it_ends() -> None:
    with OtlpReceiver() as receiver:
        task = pickle.loads(pickle.dumps(RowSpans("hot", receiver.endpoint, "job")))
        (batch,) = task(iter([rows([SAMPLED])]))
        ((service, span),) = receiver.spans()
    assert (service, span.name, span.kind) == ("job", "process hot", Span.SPAN_KIND_CONSUMER)
    assert batch.column("traceparent")[0].as_py().split("-")[2] == span.span_id.hex()


def test_a_receiver_that_is_away_changes_no_rows() -> None:
    task = RowSpans("hot", f"http://127.0.0.1:{free_port()}", "job")
    assert [each.num_rows for each in task(iter([rows([SAMPLED]), rows([None])]))] == [1, 1]


class Frame:
    """What is asked of a DataFrame before anything is planned."""

    dtypes = (("body", "binary"), ("traceparent", "string"))


def test_wrong_calls() -> None:
    frame = Frame()
    assert trace_rows(frame, "hot", endpoint="") is frame  # type: ignore[arg-type,comparison-overlap]
    with pytest.raises(LocalMisuse, match="root_ratio is 2"):
        trace_rows(frame, "hot", endpoint="", root_ratio=2)  # type: ignore[arg-type]
    frame.dtypes = (("body", "binary"),)  # type: ignore[assignment]
    with pytest.raises(LocalMisuse, match="need the column 'traceparent'"):
        trace_rows(frame, "hot", endpoint="")  # type: ignore[arg-type]
