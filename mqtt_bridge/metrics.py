"""What the bridge counts, declared once.

Invariant: every path that drops, refuses or closes has a counter with a reason here and a log event beside it.
Thread rule: written on the event loop's thread only.
"""

from __future__ import annotations

from runtime.logs import get_logger
from runtime.metrics import Registry

IN, OUT = "in", "out"


class BridgeMetrics:
    """The bridge's counters; each has the connection's name as its first label."""

    __slots__ = (
        "connected",
        "connects",
        "disconnects",
        "dropped",
        "in_flight",
        "kept_back",
        "lag",
        "messages",
        "repeated",
        "skipped",
        "unconfirmed_bytes",
    )

    def __init__(self, registry: Registry) -> None:
        both = ("connection", "direction")
        counter, gauge = registry.counter, registry.gauge
        self.messages = counter("rocketmq_bridge_messages_total", "Messages that reached the other side", both)
        self.repeated = counter("rocketmq_bridge_repeated_total", "Messages sent again after a connection ended", both)
        self.kept_back = counter(
            "rocketmq_bridge_kept_back_total", "Messages not sent on so that none goes in a circle", (*both, "reason")
        )
        self.dropped = counter(
            "rocketmq_bridge_dropped_total", "Messages that will not reach the other side", (*both, "reason")
        )
        self.skipped = counter(
            "rocketmq_bridge_skipped_total",
            "Messages deleted by retention before they were sent",
            ("connection", "reason"),
        )
        self.connects = counter("rocketmq_bridge_connects_total", "Connections the peer welcomed", both)
        self.disconnects = counter("rocketmq_bridge_disconnects_total", "Connections and attempts that ended", both)
        self.connected = gauge("rocketmq_bridge_connected", "1 while the peer is there", both)
        self.lag = gauge(
            "rocketmq_bridge_lag_messages",
            "Records of the log the bridge has yet to look at or settle",
            ("connection",),
        )
        self.in_flight = gauge(
            "rocketmq_bridge_in_flight_messages", "Messages sent and not acknowledged by the peer", ("connection",)
        )
        self.unconfirmed_bytes = gauge(
            "rocketmq_bridge_unconfirmed_bytes", "Bytes taken from the peer and not stored yet", ("connection",)
        )


class MessageCounts:
    """What becomes of the messages of one direction of one connection: counted, and logged where one is lost."""

    def __init__(self, metrics: BridgeMetrics, connection: str, direction: str) -> None:
        self.passed = metrics.messages.child(connection, direction)
        """Messages that reached the other side."""
        self.repeated = metrics.repeated.child(connection, direction)
        self._metrics = metrics
        self._labels = {"connection": connection, "direction": direction}
        self._log = get_logger(f"bridge.{direction}")

    def drop(self, reason: str, *what: object) -> None:
        """A message that will never reach the other side."""
        self._metrics.dropped.child(*self._labels.values(), reason).value += 1
        self._log.warning("message_dropped", **self._labels, reason=reason, what=what)

    def expire(self) -> None:
        """A message that expired before it was sent."""
        self._metrics.dropped.child(*self._labels.values(), "expired").value += 1

    def keep_back(self, reason: str) -> None:
        """A message that is not sent on so that none goes in a circle."""
        self._metrics.kept_back.child(*self._labels.values(), reason).value += 1

    def skip(self, reason: str, topic: str, count: int) -> None:
        """Messages that were deleted from the log before they were sent."""
        self._metrics.skipped.child(self._labels["connection"], reason).value += count
        self._log.warning(
            "messages_skipped", connection=self._labels["connection"], topic=topic, reason=reason, messages=count
        )
