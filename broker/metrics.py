"""What a broker counts, declared in one place; names as RocketMQ's exporters use them where they have one.

Counters are plain integers written by the loop thread; gauges read the store when the page is rendered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.store.log_store import LogStore
    from runtime.metrics import Registry


class BrokerMetrics:
    """Counters of the request handlers and gauges over the store."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.messages_in = registry.counter("rocketmq_messages_in_total", "Messages accepted from producers")
        self.messages_out = registry.counter("rocketmq_messages_out_total", "Messages sent to consumers")
        self.bytes_out = registry.counter("rocketmq_bytes_out_total", "Bytes of records sent to consumers")
        self.commits = registry.counter("rocketmq_sink_commits_total", "Batches of exactly-once sinks committed")
        self.fenced = registry.counter("rocketmq_sessions_fenced_total", "Sessions taken over from another connection")
        self.dropped = registry.counter(
            "rocketmq_broker_drops_total", "What was dropped, by reason", labels=("reason",)
        )

    def watch_store(self, store: LogStore) -> None:
        """Declare the gauges that read the store."""
        gauge = self._registry.gauge
        gauge(
            "rocketmq_storage_bytes",
            "Bytes of log that are kept",
            function=lambda: store.end_position - store.begin_position,
        )
        gauge(
            "rocketmq_flush_behind_bytes",
            "Bytes written but not flushed",
            function=lambda: store.end_position - store.flushed_position,
        )
        gauge(
            "rocketmq_confirm_lag_bytes",
            "Bytes written but not confirmed",
            function=lambda: store.end_position - store.confirm_position,
        )
        gauge("rocketmq_disk_free_bytes", "Free space of the data directory", function=lambda: store.free_bytes)
        gauge("rocketmq_disk_full", "1 while messages are refused for lack of space", function=lambda: int(store.full))
