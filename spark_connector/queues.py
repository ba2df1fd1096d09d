"""One queue and a range of its offsets, as every room of the connector names them.

Invariant: an end is exclusive everywhere. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class QueueKey(NamedTuple):
    """One queue: RocketMQ topic (or `%LMQ%...` of an exact MQTT topic), broker group, number."""

    topic: str
    broker: str
    queue: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue}"


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Offsets [start, end) of one queue; `queue_id` is the broker's number for it."""

    key: QueueKey
    queue_id: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """How many messages the range holds."""
        return self.end - self.start
