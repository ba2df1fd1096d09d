"""What one session was not given because it is gone: counted for everybody on the metrics page and for the session.

The session's own counts go to the broker with SESSION_CLOSE, which keeps them with the session and shows them
(SESSION_LIST). A proxy that dies takes along what its connections counted; what retention removed under a session
without a connection the broker sees by itself.
Invariant: whatever a session is passed over for is counted here, by reason. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from mqtt_proxy.metrics import ProxyMetrics


class Removed:
    """The counts of one connection."""

    __slots__ = ("_counts", "_metrics")

    def __init__(self, metrics: ProxyMetrics) -> None:
        self._metrics = metrics
        self._counts: dict[str, int] | None = None  # most sessions never need one

    def count(self, reason: str, messages: int = 1) -> None:
        """So many messages will never be given to the session."""
        self._metrics.skipped(reason).value += messages
        if messages:
            counts = self._counts = self._counts or {}
            counts[reason] = counts.get(reason, 0) + messages

    def take(self) -> list[tuple[str, int]]:
        """(reason, messages) since the last call, for SESSION_CLOSE."""
        counts, self._counts = self._counts, None
        return sorted(counts.items()) if counts else []
