"""What a subscription is given from before its filter's queue began: read in steps no larger than can be sent.

It goes out before anything at the source's cursor, like retained messages but without the retain flag, and is
acknowledged by log position: the lowest one the client may not have is committed like a queue offset, so a session that
comes back, or whose proxy was killed, goes on there.

Invariant: at most one request under way; `unacked` is in rising order, all of it below what `ready` holds. Loop rule:
on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from mqtt_proxy.link.link import Link
from mqtt_proxy.mqtt.session.place import DeliveryOrigin
from remoting.protocol.bodies.session_body import (
    FINISHED,
    HISTORY_BIT,
    HistoryReply,
    HistoryRequest,
    decode,
    encode,
    unpack_before,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.records.record import RecordView, iter_records
from runtime.logs import get_logger

RETRY_PAUSE_S = 0.2
"""Pause before a step is asked for again that was not answered."""

LOG = get_logger("proxy.history")


class HistoryRun(DeliveryOrigin):
    """The messages before one subscription's queue."""

    __slots__ = (
        "_busy",
        "_filter",
        "_from_ms",
        "_last",
        "_link",
        "_own_queue",
        "_position",
        "_refused",
        "_wake",
        "committed",
        "ended",
        "ready",
        "unacked",
    )

    def __init__(
        self,
        link: Link,
        topic_filter: str,
        own_queue: int,
        before: int,
        wake: Callable[[], None],
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """`before` is the place to begin at, see `session_body`; `refused` hears that the broker will not go on."""
        super().__init__(own_queue | HISTORY_BIT)
        self._link = link
        self._filter = topic_filter
        self._own_queue = own_queue
        self._wake = wake
        self._refused = refused
        self._position, self._from_ms, self._last = unpack_before(before)
        self._busy = False
        self.ended = before == FINISHED
        """Whether there is nothing more to read."""
        self.committed = before
        self.ready: deque[RecordView] = deque()
        self.unacked: dict[int, None] = {}

    @property
    def active(self) -> bool:
        """Whether the source's live messages still have to wait."""
        return bool(self.ready) or not self.ended

    @property
    def located(self) -> bool:
        """Whether it is a position already where it goes on, and not a wish."""
        return self.ended or (self._position > 0 and not self._last)

    @property
    def cursor(self) -> int:
        """Where sending goes on."""
        return self.ready[0].position if self.ready else FINISHED if self.ended else self._position

    def lowest(self) -> int:
        """The place to commit: everything below it is with the client."""
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
        """Ask for the next step unless one is here or under way."""
        if self._busy or self.ready or self.ended or not self._link.up:
            return
        self._busy = True
        request = HistoryRequest(self._own_queue, self._filter, self._position, self._from_ms, self._last)
        task = self._link.post(RequestCode.HISTORY, encode(request))
        task.add_done_callback(self._fetched)

    def _fetched(self, task: asyncio.Future[bytes]) -> None:
        self._busy = False
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            LOG.warning("history_not_read", filter=self._filter, error=str(error))
            if isinstance(error, Refused):  # over too many queues, or what cannot be read: live is better than nothing
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
