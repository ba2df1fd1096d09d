"""Retained messages for a new subscription: positions in the log, read in steps no larger than can be sent.

The broker answers a SUBSCRIBE with positions only. A run keeps them, requests the next step when the last one has been
sent, and keeps at most one step of messages: ten thousand retained topics cost ten thousand numbers. A message that was
replaced or removed meanwhile is left out of the answer; its successor arrives as a live message. An answer ends early
where it is full, so only one without any message says that there is none.
Invariant: at most one request in flight per run. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from mqtt_proxy.link import Link
from remoting.protocol.bodies.pull_body import encode_records_at
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.records.record import RecordView, iter_records
from runtime.logs import get_logger

STEP_RECORDS_MAX = 64
"""Retained messages per request; a default in-flight window."""

RETRY_PAUSE_S = 0.2
"""Pause before a request that failed is repeated."""

Retained = tuple[int, bytes, memoryview, int, RecordView]
"""(log position, topic, payload, QoS it was published with, the record itself)."""

LOG = get_logger("proxy.retained")


class RetainedRun:
    """The retained messages that one subscription still has to receive."""

    __slots__ = ("_busy", "_link", "_positions", "_step", "_wake", "ready")

    def __init__(self, link: Link, positions: Iterable[int], wake: Callable[[], None]) -> None:
        self._link = link
        self._positions = deque(positions)
        self._wake = wake
        self._busy = False
        self._step: list[int] = []
        """Positions of the request in flight."""
        self.ready: deque[Retained] = deque()

    @property
    def exhausted(self) -> bool:
        """Whether everything was taken."""
        return not (self._positions or self.ready or self._busy)

    def extend(self, positions: Iterable[int]) -> None:
        """The filter was subscribed again: its retained messages are sent again [MQTT-3.8.4-3]."""
        self._positions.extend(positions)

    def remaining(self) -> list[int]:
        """Positions not yet taken."""
        return [position for position, *_ in self.ready] + self._step + list(self._positions)

    def fetch(self) -> None:
        """Request the next step unless one is here or in flight."""
        if self._busy or self.ready or not self._positions or not self._link.up:
            return
        step = [self._positions.popleft() for _ in range(min(STEP_RECORDS_MAX, len(self._positions)))]
        self._busy, self._step = True, step
        task = self._link.post(RequestCode.RECORDS_AT, encode_records_at(step))
        task.add_done_callback(lambda done: self._fetched(step, done))

    def _fetched(self, step: list[int], task: asyncio.Future[bytes]) -> None:
        self._busy, self._step = False, []
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self.ready.extend(map(_retained, iter_records(task.result())))
            if self.ready:  # the answer ends where it was full: what lies behind its last message is asked for again
                last = step.index(self.ready[-1][0])
                self._positions.extendleft(reversed(step[last + 1 :]))
        else:
            LOG.warning("retained_not_read", positions=len(step), error=str(error))
            self._positions.extendleft(reversed(step))
            asyncio.get_running_loop().call_later(RETRY_PAUSE_S, self._wake)
            return
        self._wake()


def _retained(record: RecordView) -> Retained:
    return record.position, record.mqtt_topic or record.topic, record.body, record.flags & 3, record
