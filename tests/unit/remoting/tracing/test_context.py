"""W3C trace context: what is one, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.tracing.context import STATE_BYTES_MAX, TraceContext, context_of, parse, traceparent

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1))
def test_what_is_written_is_read(trace_id: int, span_id: int) -> None:
    assert parse(traceparent(trace_id, span_id)) == TraceContext(trace_id, span_id, True)


@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"00-{TRACE}-{PARENT}-00", False),
        (f"00-{TRACE}-{PARENT}-03", True),
        (f"01-{TRACE}-{PARENT}-01-more", True),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE}-{PARENT}-1", None),
        (f" 00-{TRACE}-{PARENT}-01", None),
        ("", None),
    ],
)
def test_forms(value: str, sampled: bool | None) -> None:
    found = parse(value.encode())
    assert (None if found is None else found.sampled) is sampled


@given(st.binary(max_size=80))
def test_nothing_else_is_an_error(value: bytes) -> None:
    found = parse(value)
    assert found is None or (found.trace_id and found.span_id)


def test_the_last_of_repeated_properties_counts() -> None:
    first, last = traceparent(1, 2), traceparent(3, 4)
    pairs = [(b"traceparent", first), (b"unit", b"c"), (b"tracestate", b"a=1"), (b"traceparent", last)]
    assert context_of(pairs) == TraceContext(3, 4, True, "a=1")
    assert context_of([(b"unit", b"c")]) is None
    assert context_of([*pairs, (b"tracestate", b"a" * (STATE_BYTES_MAX + 1))]) == TraceContext(3, 4, True)
