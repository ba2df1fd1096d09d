"""What all sessions' deliveries share: one of each per proxy.

Invariant: set once, when the proxy is put together. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from mqtt_proxy.delivery.notify import Notifier
from mqtt_proxy.delivery.offsets import OffsetCommitter
from mqtt_proxy.delivery.pull import Puller
from mqtt_proxy.delivery.pump import Pump
from mqtt_proxy.delivery.record_cache import RecordCache
from mqtt_proxy.metrics import ProxyMetrics
from mqtt_proxy.shared.hub import SharedHub
from runtime.clock import Clock


class DeliveryTools:
    """What all sessions' deliveries share."""

    __slots__ = ("cache", "clock", "metrics", "notifier", "offsets", "puller", "pump", "shared")

    def __init__(
        self,
        cache: RecordCache,
        notifier: Notifier,
        puller: Puller,
        pump: Pump,
        offsets: OffsetCommitter,
        metrics: ProxyMetrics,
        clock: Clock,
        shared: SharedHub,
    ) -> None:
        self.cache = cache
        self.clock = clock
        self.notifier = notifier
        self.puller = puller
        self.pump = pump
        self.offsets = offsets
        self.metrics = metrics
        self.shared = shared
