"""What a broker counts, declared in one place; names as RocketMQ's exporters use them where they have one.

Counters are plain integers written by the loop thread; gauges read the store when the page is rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from remoting.protocol.bodies.pull_body import VIEW_FIELD

if TYPE_CHECKING:
    from broker.store.log_store import LogStore
    from runtime.metrics import Registry


class BrokerMetrics:
    """Counters of the request handlers and gauges over the store."""

    def __init__(self, registry: Registry) -> None:
        self.messages_in = registry.counter("rocketmq_messages_in_total", "Messages accepted from producers")
        self.messages_out = registry.counter("rocketmq_messages_out_total", "Messages sent to consumers")
        self.bytes_out = registry.counter("rocketmq_bytes_out_total", "Bytes of records sent to consumers")
        self.viewed = registry.counter(
            "rocketmq_messages_viewed_total", "Messages shown by the console, lightmq tail and queries; not consumed"
        )
        self.withheld = registry.counter(
            "rocketmq_messages_withheld_total",
            "Messages that passed a filter and that its key may not read, by reason",
            labels=("reason",),
        )
        self.commits = registry.counter("rocketmq_sink_commits_total", "Batches of exactly-once sinks committed")
        self.fenced = registry.counter("rocketmq_sessions_fenced_total", "Sessions taken over from another connection")
        self.shared_given = registry.counter(
            "rocketmq_shared_messages_out_total", "Messages handed to members of shared subscriptions"
        )
        self.shared_returned = registry.counter(
            "rocketmq_shared_returned_total",
            "Messages of shared subscriptions that go to another member, by reason",
            labels=("reason",),
        )
        self.wills = registry.counter(
            "rocketmq_wills_due_total", "Wills whose time had come, by what became of them", labels=("outcome",)
        )
        self.expired_bytes = registry.counter(
            "rocketmq_expired_bytes_total", "Bytes of log files that retention deleted, by reason", labels=("reason",)
        )
        self.expired_messages = registry.counter(
            "rocketmq_expired_messages_total", "Messages hidden by a topic's own retention", labels=("reason",)
        )
        self.cut_short_bytes = registry.counter(
            "rocketmq_retention_cut_short_bytes_total", "Bytes deleted before a topic's own retention was over"
        )
        self.refused = registry.counter(
            "rocketmq_requests_refused_total", "Requests refused by the store", labels=("reason",)
        )
        self.delayed_failures = registry.counter(
            "rocketmq_delayed_failures_total", "Passes over the waiting messages that failed and were tried again"
        )
        self.unpublished = registry.counter(
            "rocketmq_topics_unpublished_total",
            "Topics acknowledged before every controller had their route, by reason",
            labels=("reason",),
        )
        self.dropped = registry.counter(
            "rocketmq_broker_drops_total", "What was dropped, by reason", labels=("reason",)
        )

    def count_out(self, asked: Mapping[str, str], messages: int, size_bytes: int) -> None:
        """Messages in the answer to a request with these fields: whoever looks on consumes nothing."""
        if VIEW_FIELD in asked:
            self.viewed.value += messages
        else:
            self.messages_out.value += messages
            self.bytes_out.value += size_bytes

    def count_unpublished(self, reason: str, topics: int) -> None:
        """So many topics were acknowledged before every controller had their route."""
        self.unpublished.child(reason).value += topics

    def read_store(self, store: LogStore) -> None:
        """Take over what the store counts itself; called after its upkeep."""
        found = store.metrics()
        for reason in ("age", "size", "disk_full"):
            self.expired_bytes.child(reason).value = found[f"segments_expired_{reason}_bytes_total"]
        for reason in ("age", "size"):
            self.expired_messages.child(reason).value = found[f"topics_expired_{reason}_messages_total"]
        self.cut_short_bytes.value = found["retention_cut_short_bytes_total"]


class AppendTimes:
    """How long appends take, one value for each."""

    __slots__ = ("confirm_s", "monotonic_ns", "write_s")

    def __init__(self, registry: Registry, monotonic_ns: Callable[[], int]) -> None:
        self.monotonic_ns = monotonic_ns
        self.write_s = registry.histogram(
            "rocketmq_append_seconds", "Writing what gathered in one turn of the loop to the log"
        ).observe
        self.confirm_s = registry.histogram(
            "rocketmq_confirm_seconds", "From written to confirmed: flushed, and at the replicas that are needed"
        ).observe


def watch_store(registry: Registry, store: LogStore) -> None:
    """Declare the gauges that read the store."""
    gauge = registry.gauge
    gauge(
        "rocketmq_storage_bytes",
        "Bytes of log that are kept",
        function=lambda: store.end_position - store.begin_position,
    )
    gauge(
        "rocketmq_retention_state_bytes",
        "Bytes of the log that are state carried forward since the start, because the files it was in have expired",
        function=lambda: store.metrics()["retention_state_bytes"],
    )
    gauge(
        "rocketmq_flush_behind_bytes",
        "Bytes written but not flushed",
        function=lambda: store.end_position - store.positions.flushed,
    )
    gauge(
        "rocketmq_confirm_lag_bytes",
        "Bytes written but not confirmed",
        function=lambda: store.end_position - store.confirm_position,
    )
    store.positions.on_flush(registry.histogram("rocketmq_flush_seconds", "One flush of the log (fdatasync)").observe)
    gauge("rocketmq_disk_free_bytes", "Free space of the data directory", function=lambda: store.disk.free_bytes)
    gauge("rocketmq_disk_full", "1 while messages are refused for lack of space", function=lambda: int(store.disk.full))
    _watch_damage(registry, store)


def _watch_damage(registry: Registry, store: LogStore) -> None:
    """What is known to be damaged, and how far the search for damage has got."""
    counter, gauge = registry.counter, registry.gauge
    gauge(
        "rocketmq_quarantined_bytes",
        "Bytes of the log that were durable and are damaged",
        function=lambda: sum(each.end - each.start for each in store.quarantined),
    )
    counter(
        "rocketmq_damaged_reads_total",
        "Reads since the start that met messages which cannot be read",
        function=lambda: store.metrics()["damaged_reads_total"],
    )

    gauge(
        "rocketmq_quarantined_ranges",
        "Damaged stretches of the log that are known",
        function=lambda: len(store.quarantined),
    )
    gauge(
        "rocketmq_scrub_passed_bytes",
        "Bytes of the log behind the pass that compares its checksums",
        function=lambda: max(0, store.metrics().get("scrub_position", 0) - store.begin_position),
    )
    gauge(
        "rocketmq_scrub_completed_timestamp_seconds",
        "When the last whole pass over the log ended; 0: none since the start",
        function=lambda: store.metrics().get("scrub_completed_ms", 0) / 1000,
    )
    counter(
        "rocketmq_scrub_damaged_ranges_total",
        "Damaged stretches that the passes have met since the start",
        function=lambda: store.metrics().get("scrub_damaged_ranges_total", 0),
    )


class ReaderMetrics:
    """What the reader processes report, added up over all of them and over their restarts."""

    def __init__(self, registry: Registry, broker: BrokerMetrics) -> None:
        self.broker = broker
        """Records sent or withheld by readers count there."""
        self.running = registry.gauge("rocketmq_range_readers", "Reader processes that serve")
        self.restarts = registry.counter("rocketmq_range_reader_restarts_total", "Reader processes that ended")
        self.requests = registry.counter("rocketmq_range_reader_requests_total", "Ranges asked of reader processes")
        self.bytes = registry.counter("rocketmq_range_reader_bytes_total", "Bytes of records sent by reader processes")
        self.retries = registry.counter(
            "rocketmq_range_reader_retries_total", "Looks at the index taken again because it changed meanwhile"
        )
        self.refused = registry.counter(
            "rocketmq_range_reader_refused_total", "Ranges left to the broker, by reason", labels=("reason",)
        )
