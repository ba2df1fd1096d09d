"""Where a delivery came from, as what it is known by until it is acknowledged.

Invariant: a place names a queue, or with a bit of its own a stretch of the log. Loop rule: on the loop's thread.
"""

from __future__ import annotations

RETAINED_QUEUE = 0xFFFF_FFFF
"""Queue id of a place that is a log position instead of a queue offset: a retained message."""


class DeliveryOrigin:
    """What an acknowledged delivery is reported to; this one only remembers where the message lies."""

    __slots__ = ("queue_id",)

    noted = True
    """Whether a closing session notes its unacknowledged deliveries from here, to send them again itself."""

    flow_bit = 0
    """What is added to the queue id where a QoS 2 delivery from here is noted."""

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id

    def acknowledge(self, offset: int) -> None:
        """The client has the message at `offset`."""
