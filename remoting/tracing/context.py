"""W3C trace context of a message: the properties `traceparent` and `tracestate` (https://www.w3.org/TR/trace-context/).

    traceparent   VERSION-TRACEID-PARENTID-FLAGS, 2, 32, 16 and 2 lower-case hex digits; bit 0 of the flags: sampled
    tracestate    text of the tracing systems that the trace came through, passed on as it is

They are ordinary properties: user properties of MQTT 5, properties of RocketMQ's messages, entries of Spark's map
`properties`. The context is that of the message's creation, and no part of LightMQ changes it: spans made on its way
are its children. Of a property that occurs several times the last counts, as everywhere.

Invariant: `parse(traceparent(t, s)) == TraceContext(t, s, True)`; what is malformed is no context, never an error.
Thread rule: pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

TRACEPARENT = b"traceparent"
TRACESTATE = b"tracestate"
STATE_BYTES_MAX = 512
"""Longest tracestate that is taken into spans; a longer one stays with its message only."""
_FORM = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL
)
_FIRST_VERSION = b"00"
_SAMPLED = 1


class TraceContext(NamedTuple):
    """Where a message stands in its trace."""

    trace_id: int
    """128 bits."""
    span_id: int
    """64 bits: the span in which the message was made."""
    sampled: bool
    state: str = ""
    """tracestate, empty for none."""


def parse(parent: bytes, state: bytes = b"") -> TraceContext | None:
    """Return the context that two property values stand for; None for a malformed traceparent.

    Later versions may have more parts, the first has exactly four.
    """
    found = _FORM.fullmatch(parent)
    if found is None or (found[1] == _FIRST_VERSION and found[5] is not None):
        return None
    text = state.decode("utf-8", "replace") if len(state) <= STATE_BYTES_MAX else ""
    return TraceContext(int(found[2], 16), int(found[3], 16), bool(int(found[4], 16) & _SAMPLED), text)


def context_of(properties: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """Return the context of a message, by its properties; None without one."""
    parent = state = b""
    for key, value in properties:
        if key == TRACEPARENT:
            parent = bytes(value)
        elif key == TRACESTATE:
            state = bytes(value)
    return parse(parent, state) if parent else None


def traceparent(trace_id: int, span_id: int) -> bytes:
    """Return the property value of a sampled context."""
    return b"00-%032x-%016x-01" % (trace_id, span_id)
