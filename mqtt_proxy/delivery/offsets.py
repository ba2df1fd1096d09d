"""Offsets of durable sessions: lowest unacknowledged, in one APPEND_OFFSETS per interval for all of them.

Acknowledgements and QoS 0 deliveries mark a session; the timer collects what moved. After a crash at most one
interval of acknowledged messages is sent again; a closing session carries its offsets in its SESSION_CLOSE.
Invariant: what is sent is never above a message that the client may not have. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mqtt_proxy.link import Link
from remoting.protocol.bodies.session_body import FINISHED, encode_offsets
from remoting.protocol.frames.codes import RequestCode
from runtime.logs import get_logger

if TYPE_CHECKING:
    from mqtt_proxy.delivery.source import Source
    from mqtt_proxy.history import HistoryRun

OFFSETS_PER_REQUEST_MAX = 8_192
"""Offsets in one request; more go in the next one at once."""

UNKNOWN = -1
"""Committed offset of a source whose last commit may not have arrived: anything differs from it."""


class Committing(Protocol):
    """A durable session."""

    committed_key: bytes | None
    sources: list[Source]


Moved = tuple[bytes, "Source | HistoryRun", int, Committing]
"""(key of the session, what moved, where to, the session)."""


class OffsetCommitter:
    """Sends offsets of all sessions of the proxy."""

    def __init__(self, link: Link, *, interval_ms: int) -> None:
        self._link = link
        self._interval_s = interval_ms / 1000
        self._dirty: dict[Committing, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._log = get_logger("proxy.offsets")
        link.on_up(self._arm)

    def mark(self, session: Committing) -> None:
        """Some offset of a session may have moved."""
        self._dirty[session] = None
        if self._timer is None:
            self._arm()

    def forget(self, session: Committing) -> None:
        """The session has ended and reported its offsets itself."""
        self._dirty.pop(session, None)

    def stop(self) -> None:
        """No further timer; sessions still marked report their offsets themselves."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._dirty.clear()

    def _arm(self) -> None:
        if self._timer is None and self._dirty:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self.commit)

    def commit(self) -> None:
        """Send what moved, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._link.up:
            return
        dirty, self._dirty = self._dirty, {}
        moved: list[Moved] = []
        for session in dirty:
            key = session.committed_key
            if key is None:
                continue
            for source in session.sources:
                lowest = source.lowest()
                if lowest != source.committed:
                    source.committed = lowest
                    moved.append((key, source, lowest, session))
                if source.history is not None:
                    self._of_history(key, source, source.history, session, moved)
        for start in range(0, len(moved), OFFSETS_PER_REQUEST_MAX):
            self._send(moved[start : start + OFFSETS_PER_REQUEST_MAX])

    @staticmethod
    def _of_history(key: bytes, source: Source, run: HistoryRun, session: Committing, moved: list[Moved]) -> None:
        """The history position to commit; the last one once the client has all of it."""
        lowest = run.lowest()
        if lowest != run.committed and lowest >= 0:
            run.committed = lowest
            moved.append((key, run, lowest, session))
        elif lowest == FINISHED:
            source.history = None

    def _send(self, moved: Sequence[Moved]) -> None:
        body = encode_offsets([(key, source.queue_id, offset) for key, source, offset, _ in moved])
        task = self._link.post(RequestCode.APPEND_OFFSETS, body)
        task.add_done_callback(lambda done: self._sent(moved, done))

    def _sent(self, moved: Sequence[Moved], task: asyncio.Future[bytes]) -> None:
        if task.cancelled() or task.exception() is None:
            return
        self._log.warning("offsets_not_committed", offsets=len(moved), error=str(task.exception()))
        for _, source, _, session in moved:
            source.committed = UNKNOWN
            if session.sources:
                self.mark(session)
