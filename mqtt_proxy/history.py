"""Messages stored before a subscription: how a client requests them, and how they are read.

MQTT 5: one user property of SUBSCRIBE, for all filters of the packet:

    from-time     milliseconds since 1970, or ISO 8601 (without a zone: UTC)
    from-offset   offset in the filter's queue; 0 = everything that is kept
    last          number of messages

Both versions: `$history/<name>=<value>/<filter>`, for that filter alone. It creates the subscription `<filter>` with an
earlier start, and either name unsubscribes it. Messages in the filter's queue are read from a lower cursor.

Messages stored before the queue existed are read by a `HistoryRun`, in steps no larger than can be sent. They go out
before anything at the source's cursor, like retained messages but without the retain flag, and are acknowledged by log
position: the lowest position the client may not have is committed like a queue offset, so that delivery continues there
after a crash.

Invariant: a request that is not understood is refused, never ignored. At most one request of a run is under way;
`unacked` is in rising order, all of it below what `ready` holds. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from mqtt_proxy.history_steps import HistorySteps
from mqtt_proxy.mqtt.session.in_flight import DeliveryOrigin
from remoting.protocol.bodies.session_body import (
    FINISHED,
    HISTORY_BIT,
    HistoryReply,
    HistoryRequest,
    HistoryStart,
    decode,
    unpack_before,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.record import RecordView, iter_records
from runtime.logs import get_logger

HISTORY_PREFIX = "$history/"
NAMES = ("from-time", "from-offset", "last")
NUMBER_DIGITS_MAX = 18
"""Longest number taken, so that it fits 63 bits; a longer one is refused."""


class NotUnderstood(ValueError):
    """A request that names no valid time, offset or number of messages."""


def plain_filter(topic_filter: str) -> str:
    """Return the filter that a `$history/` name subscribes to; every other filter unchanged."""
    if not topic_filter.startswith(HISTORY_PREFIX):
        return topic_filter
    return topic_filter[len(HISTORY_PREFIX) :].partition("/")[2]


def start_of_filter(topic_filter: str) -> HistoryStart | None:
    """Return the start that a `$history/` name requests; None for every other filter. Raises NotUnderstood."""
    if not topic_filter.startswith(HISTORY_PREFIX):
        return None
    option, slash, inner = topic_filter[len(HISTORY_PREFIX) :].partition("/")
    name, equals, value = option.partition("=")
    if not (slash and inner and equals):
        raise NotUnderstood(f"{topic_filter!r} is not {HISTORY_PREFIX}<name>=<value>/<filter>")
    return _start(name, value)


def start_of_user(user: Iterable[tuple[bytes, bytes]]) -> HistoryStart | None:
    """Return the start that the user properties of a SUBSCRIBE request; None without one. Raises NotUnderstood."""
    found = [(key.decode(), value) for key, value in user if key in _KEYS]
    if not found:
        return None
    if len(found) > 1:
        raise NotUnderstood(f"more than one of {', '.join(NAMES)}")
    name, value = found[0]
    return _start(name, value.decode("utf-8", "replace"))


_KEYS = frozenset(name.encode() for name in NAMES)


def _start(name: str, value: str) -> HistoryStart:
    if name == "from-time":
        return HistoryStart(from_ms=_time_ms(value))
    if name == "from-offset":
        return HistoryStart(from_offset=_number(name, value))
    if name == "last":
        return HistoryStart(last=_number(name, value))
    raise NotUnderstood(f"{name!r} is none of {', '.join(NAMES)}")


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()) or len(value) > NUMBER_DIGITS_MAX:
        raise NotUnderstood(f"{name}={value[:40]!r} is not a number of at most {NUMBER_DIGITS_MAX} digits")
    return int(value)


def _time_ms(value: str) -> int:
    if value.isascii() and value.isdigit():
        return _number("from-time", value)
    try:
        moment = datetime.fromisoformat(value)
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return max(0, int(zoned.timestamp() * 1_000))
    except (ValueError, OverflowError) as error:
        raise NotUnderstood(f"from-time={value[:40]!r} is neither milliseconds nor ISO 8601") from error


RETRY_PAUSE_S = 0.2
"""Pause before a request that failed is repeated."""

LOG = get_logger("proxy.history")


class HistoryRun(DeliveryOrigin):
    """The messages before one subscription's queue."""

    __slots__ = (
        "_busy",
        "_filter",
        "_from_ms",
        "_last",
        "_own_queue",
        "_position",
        "_refused",
        "_steps",
        "_wake",
        "committed",
        "ended",
        "ready",
        "unacked",
    )

    def __init__(
        self,
        steps: HistorySteps,
        topic_filter: str,
        own_queue: int,
        before: int,
        wake: Callable[[], None],
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """`before` is where to begin, see `session_body`; `refused` is called when the broker will not continue."""
        super().__init__(own_queue | HISTORY_BIT)
        self._steps = steps
        self._filter = topic_filter
        self._own_queue = own_queue
        self._wake = wake
        self._refused = refused
        self._position, self._from_ms, self._last = unpack_before(before)
        self._busy = False
        self.ended = before == FINISHED
        """Whether there is nothing left to read."""
        self.committed = before
        self.ready: deque[RecordView] = deque()
        self.unacked: dict[int, None] = {}

    @property
    def active(self) -> bool:
        """Whether the source's live messages still have to wait."""
        return bool(self.ready) or not self.ended

    @property
    def located(self) -> bool:
        """Whether the start is a log position already, and not a request."""
        return self.ended or (self._position > 0 and not self._last)

    @property
    def cursor(self) -> int:
        """Where sending continues."""
        return self.ready[0].position if self.ready else FINISHED if self.ended else self._position

    def lowest(self) -> int:
        """The position to commit: the client has everything below it."""
        for position in self.unacked:
            return position
        return self.cursor if self.located else self.committed

    def sent_before(self, offset: int) -> None:
        """A delivery of the session's previous connection is still in flight."""
        self.unacked[offset] = None

    def acknowledge(self, offset: int) -> None:
        """The client has the message at this position."""
        self.unacked.pop(offset, None)

    def fetch(self) -> None:
        """Request the next step unless one is here or in flight."""
        if self._busy or self.ready or self.ended or not self._steps.up:
            return
        self._busy = True
        request = HistoryRequest(self._own_queue, self._filter, self._position, self._from_ms, self._last)
        task = self._steps.step(request)
        task.add_done_callback(self._fetched)

    def _fetched(self, task: asyncio.Future[bytes]) -> None:
        self._busy = False
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            LOG.warning("history_not_read", filter=self._filter, error=str(error))
            if isinstance(error, Refused) and error.code != ResponseCode.SERVICE_NOT_AVAILABLE:
                # Too many queues, or unreadable: live messages are better than none.
                self.ended = True
                self._refused()
                self._wake()
                return
            asyncio.get_running_loop().call_later(RETRY_PAUSE_S, self._wake)
            return
        reply = decode(HistoryReply, task.result())
        self._position = reply.position
        if self._last:
            self._last = 0 if reply.done else reply.last
        else:
            self.ready.extend(iter_records(reply.records))
            self.ended = reply.done
        self._wake()
