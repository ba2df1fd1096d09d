"""Finished spans between the loop that notes them and the thread that sends them, and where traces begin.

A span is noted when it has ended, with its times; nothing is kept open. Its parent is the context in the message
(`context`), whose flag decides whether there is a span at all. With a ratio, some of the messages without a context
begin a trace: the distance to the next one is drawn, so messages in between cost nothing.

Invariants: at most `queue_spans_max` spans wait, further ones are dropped and counted; `note` never waits and never
fails. `recorded == waiting + dropped + exported + failed` once the sender is idle. Thread rule: `note` and `begin` on
one thread, `take` on another.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import NamedTuple

from remoting.tracing.context import TraceContext

QUEUE_SPANS_MAX = 2_048
Attribute = str | int
"""What an attribute of a span may be."""


class SpanKind(IntEnum):
    """Kinds of spans, by their numbers in OTLP."""

    SERVER = 2
    PRODUCER = 4
    CONSUMER = 5


class FinishedSpan(NamedTuple):
    """What happened to one message, with its times and its place in a trace."""

    name: str
    kind: SpanKind
    trace_id: int
    span_id: int
    parent_id: int
    """0: it has none."""
    state: str
    start_ns: int
    """Since 1970."""
    end_ns: int
    attributes: Mapping[str, Attribute]
    error: str
    """Why what it stands for failed; empty for success."""


def random_number() -> float:
    """A number above 0 and up to 1."""
    return 1.0 - secrets.randbits(53) / (1 << 53)


class Tracer:
    """The spans of one process."""

    def __init__(
        self,
        *,
        queue_spans_max: int = QUEUE_SPANS_MAX,
        root_ratio: float = 0.0,
        draw: Callable[[], float] = random_number,
    ) -> None:
        """`root_ratio`: the share (0 to 1) of messages without a context that begin a trace; `draw` as
        `random_number`."""
        self.recorded = 0
        """Spans noted."""
        self.dropped = 0
        """Of those, spans that found the queue full."""
        self.exported = 0
        """Spans that the receiver has taken."""
        self.failed = 0
        """Spans that it has not taken."""
        self._queue_spans_max = queue_spans_max
        self._waiting: deque[FinishedSpan] = deque()
        self._ratio = root_ratio
        self._draw = draw
        self._until_root = self._distance() if root_ratio else 0

    @property
    def begins(self) -> bool:
        """Whether messages without a context may begin a trace."""
        return self._ratio > 0

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, messages: int) -> list[int]:
        """Return which of the next `messages` messages without a context begin a trace, by their numbers from 0."""
        chosen = []
        while self._until_root < messages:
            chosen.append(self._until_root)
            self._until_root += 1 + self._distance()
        self._until_root -= messages
        return chosen

    def _distance(self) -> int:
        """How many messages are passed over before the next one that begins a trace: geometrically distributed."""
        return 0 if self._ratio >= 1 else int(math.log(self._draw()) / math.log1p(-self._ratio))

    def note(
        self,
        context: TraceContext,
        name: str,
        kind: SpanKind,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Attribute],
        error: str = "",
    ) -> int:
        """Note a span that has ended, a child of `context`; return its id.

        0 where there is none: the context is not sampled, or the queue is full.
        """
        if not context.sampled:
            return 0
        self.recorded += 1
        if len(self._waiting) >= self._queue_spans_max:
            self.dropped += 1
            return 0
        span_id = fresh_id(64)
        self._waiting.append(
            FinishedSpan(
                name,
                kind,
                context.trace_id,
                span_id,
                context.span_id,
                context.state,
                start_ns,
                max(start_ns, end_ns),
                attributes,
                error,
            )
        )
        return span_id

    def take(self, count_max: int) -> list[FinishedSpan]:
        """Return the oldest spans that wait, and let them go."""
        waiting = self._waiting
        return [waiting.popleft() for _ in range(min(count_max, len(waiting)))]


def fresh_id(bits: int) -> int:
    """Return a random identifier of so many bits that is not 0."""
    return secrets.randbits(bits) or 1


def fresh_root() -> TraceContext:
    """Return the context of a message that begins a trace."""
    return TraceContext(fresh_id(128), fresh_id(64), True)
