"""Queue locks of orderly consumers: one client of a group per queue, renewed every 20 s, free after 60 s of silence.

In memory only, as clients expect: after a restart every lock is free and the clients lock again. Loop thread only.
"""

from __future__ import annotations

LOCK_EXPIRY_MS = 60_000

QueueKey = tuple[str, int]
"""(topic, queue index)."""


class QueueLocks:
    """Who holds which queue for which group."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, QueueKey], tuple[str, int]] = {}

    def lock(self, group: str, queue: QueueKey, client_id: str, now_ms: int) -> bool:
        """Take or renew a queue for a client; False when another client of the group holds it."""
        holder = self._held.get((group, queue))
        if holder is not None and holder[0] != client_id and now_ms - holder[1] < LOCK_EXPIRY_MS:
            return False
        self._held[group, queue] = (client_id, now_ms)
        return True

    def unlock(self, group: str, queue: QueueKey, client_id: str) -> None:
        """Give a queue back; nothing happens when the client does not hold it."""
        holder = self._held.get((group, queue))
        if holder is not None and holder[0] == client_id:
            del self._held[group, queue]

    def expire(self, now_ms: int) -> None:
        """Forget the locks nobody renewed."""
        stale = [key for key, (_client, since) in self._held.items() if now_ms - since >= LOCK_EXPIRY_MS]
        for key in stale:
            del self._held[key]
