"""Retained messages as one feature: their table, their quota, and the end of those that expire."""

from __future__ import annotations

from broker.requests.tools import Feature, RequestTools
from broker.retained.retained import Retained, RetainedExpiry, RetainedQuota


class RetainedFeature(Feature):
    """The retained message of each topic; SUBSCRIBE finds them, RECORDS_AT reads them."""

    def __init__(self, tools: RequestTools) -> None:
        limits = tools.config.limits
        self.table = Retained(tools.store)
        self.quota = RetainedQuota(
            tools.store,
            self.table,
            messages_max=limits.retained_messages_max,
            bytes_max=limits.retained_bytes_max,
        )
        self.expiry = RetainedExpiry(tools.store, tools.log, self.quota.seen)
        self._clock = tools.clock

    def note_expiry(self, topic: bytes, expiry_s: int) -> None:
        """A message of this topic is about to be retained for `expiry_s` seconds."""
        self.expiry.note(topic, expiry_s, self._clock.now_ms())

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Remove some of what has expired."""
        return {"retained_expired": self.expiry.step(now_ms)}

    def status(self) -> dict[str, int]:
        """How many topics have a retained message."""
        return {"retained_messages": len(self.table)}
