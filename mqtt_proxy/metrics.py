"""What the proxy counts, declared once.

Invariant: every path that drops, refuses or closes has a counter with a reason here and a log event beside it.
Thread rule: written on the event loop's thread only; plain integers on the hot path.
"""

from __future__ import annotations

from runtime.metrics import Counter, Registry


class ProxyMetrics:
    """The proxy's counters; hot ones as attributes, rare ones by reason."""

    __slots__ = (
        "_closed",
        "_lost",
        "acknowledged",
        "append_frames",
        "connected",
        "delivered",
        "fences",
        "flow_frames",
        "overlaps_merged",
        "publish_pauses",
        "published",
        "published_bytes",
        "publishes_repeated",
        "pulled",
        "pulls",
        "rate_pauses",
        "redelivered",
        "refused_connects",
        "refused_publishes",
        "refused_subscriptions",
        "registry",
        "retained_delivered",
        "revoked_subscriptions",
        "shared_late",
        "subscriptions",
        "will_failures",
        "wills",
    )

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        counter = registry.counter
        self.connected = counter("rocketmq_mqtt_connects_total", "Sessions opened for MQTT clients")
        self.shared_late = counter(
            "rocketmq_mqtt_shared_late_total", "Messages of shared subscriptions that came for a session that had ended"
        )
        self._closed = counter("rocketmq_mqtt_closes_total", "Connections of sessions that ended", ("reason",))
        self.refused_connects = counter("rocketmq_mqtt_connects_refused_total", "CONNECTs refused", ("reason",))
        self.published = counter("rocketmq_mqtt_messages_in_total", "Messages confirmed by the broker for publishers")
        self.published_bytes = counter("rocketmq_mqtt_bytes_in_total", "Bytes of PUBLISH packets received")
        self.append_frames = counter("rocketmq_mqtt_append_requests_total", "Append requests sent to the broker")
        self.flow_frames = counter("rocketmq_mqtt_flow_requests_total", "Requests that note steps of QoS 2")
        self.refused_publishes = counter(
            "rocketmq_mqtt_publishes_refused_total", "Messages not accepted; see below", ("reason",)
        )
        self.publishes_repeated = counter(
            "rocketmq_mqtt_publishes_repeated_total", "Messages sent again because the broker was lost"
        )
        self.publish_pauses = counter(
            "rocketmq_mqtt_publish_pauses_total", "Times publishers were not read for a while"
        )
        self.rate_pauses = counter(
            "rocketmq_mqtt_rate_pauses_total", "Times a client was not read because of a publish quota", ("quota",)
        )
        self.delivered = counter("rocketmq_mqtt_messages_out_total", "Messages handed to subscribers' sockets")
        self.redelivered = counter("rocketmq_mqtt_redeliveries_total", "Messages sent again after a session resumed")
        self.retained_delivered = counter("rocketmq_mqtt_retained_out_total", "Retained messages sent on SUBSCRIBE")
        self.overlaps_merged = counter(
            "rocketmq_mqtt_overlaps_merged_total", "Second copies spared by overlapping subscriptions of one session"
        )
        self.acknowledged = counter("rocketmq_mqtt_messages_acknowledged_total", "Deliveries acknowledged by clients")
        self.refused_subscriptions = counter(
            "rocketmq_mqtt_subscriptions_refused_total", "Filters refused in a SUBACK", ("reason",)
        )
        self.subscriptions = registry.gauge("rocketmq_mqtt_subscriptions", "Subscriptions of connected clients")
        self._lost = counter(
            "rocketmq_mqtt_messages_skipped_total", "Messages a session could no longer be given", ("reason",)
        )
        self.revoked_subscriptions = counter(
            "rocketmq_mqtt_subscriptions_revoked_total", "Subscriptions ended because the rules no longer allow them"
        )
        self.pulls = counter("rocketmq_mqtt_pull_requests_total", "Pull requests sent to the broker")
        self.pulled = counter("rocketmq_mqtt_pulled_records_total", "Records pulled from the broker")
        self.fences = counter("rocketmq_mqtt_takeovers_total", "Connections ended because their client id came again")
        self.wills = counter("rocketmq_mqtt_wills_total", "Wills published")
        self.will_failures = counter("rocketmq_mqtt_wills_failed_total", "Wills the broker did not accept", ("reason",))

    def closed(self, reason: str) -> Counter:
        """Closes by their reason; only the part before a colon counts, the rest is detail."""
        return self._closed.child(reason.partition(":")[0])

    def skipped(self, reason: str) -> Counter:
        """Messages a session was not given, by reason: retention, queue gone, log shorter, note full."""
        return self._lost.child(reason)
