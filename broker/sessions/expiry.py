"""When sessions end by themselves: a heap of due times, one live entry per session.

A session that closes again and again, or comes back, does not grow the heap: it is entered when it has no entry, or an
earlier one is needed. An entry that comes too early puts the session in again at its due time. Entries of sessions that
are gone are swept out when they outnumber the others.

Invariant: every closed durable session has an entry at or before its due time. Pure; time comes in as an argument.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from broker.sessions.client_session import ClientSession

_STALE_ENTRIES_MIN = 1_024
"""Below so many entries nothing is swept."""


NEVER_S = 0xFFFF_FFFF
"""Expiry of a session that does not end by itself, as MQTT 5 writes it."""
NEVER_MS = 1 << 62
"""A time that does not come."""


def due_ms(session: ClientSession) -> int:
    """When a closed session ends."""
    return NEVER_MS if session.expiry_s >= NEVER_S else session.closed_ms + session.expiry_s * 1_000


class ExpiryQueue:
    """Says which sessions have to be looked at."""

    def __init__(self, sessions: Mapping[str, ClientSession]) -> None:
        self._sessions = sessions
        self._heap: list[tuple[int, str]] = []
        self._wake_ms: dict[str, int] = {}
        """Client id -> the time of its live entry."""

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, session: ClientSession) -> None:
        """A session has closed."""
        at_ms = due_ms(session)
        if at_ms == NEVER_MS:
            return
        if self._wake_ms.get(session.client_id, at_ms + 1) <= at_ms:
            return
        self._wake_ms[session.client_id] = at_ms
        heapq.heappush(self._heap, (at_ms, session.client_id))
        if len(self._heap) > max(_STALE_ENTRIES_MIN, 2 * len(self._sessions)):
            self._wake_ms = {name: wake_ms for name, wake_ms in self._wake_ms.items() if name in self._sessions}
            self._heap = [(wake_ms, name) for name, wake_ms in self._wake_ms.items()]
            heapq.heapify(self._heap)

    def over(self, now_ms: int) -> list[ClientSession]:
        """The closed sessions whose time has come."""
        found = []
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, client_id = heapq.heappop(self._heap)
            if self._wake_ms.get(client_id) != at_ms:
                continue
            del self._wake_ms[client_id]
            session = self._sessions.get(client_id)
            if session is None or session.owner is not None:
                continue
            if due_ms(session) <= now_ms:
                found.append(session)
            else:
                self.schedule(session)
        return found
