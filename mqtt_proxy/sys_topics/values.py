"""The values of the `$SYS` tree, under the names Mosquitto's users know.

    $SYS/broker/version, uptime, timestamp
    $SYS/broker/clients/connected, disconnected, total, maximum, expired
    $SYS/broker/messages/received, sent, stored      bytes/received, sent
    $SYS/broker/publish/messages/received, sent, dropped      publish/bytes/received
    $SYS/broker/subscriptions/count    retained messages/count    heap/current, heap/maximum
    $SYS/broker/load/<messages|publish|bytes>/<received|sent>/1min, 5min, 15min    load/connections, load/sockets

What a proxy counts is its own since its start, subscriptions those of clients connected to it; clients, retained and
stored messages are the broker's, of all its proxies, as it said last. `messages/…` are PUBLISHes, their
acknowledgements and CONNECTs.
Invariant: a value is text; nothing here keeps state but the load averages, the largest number of clients and memory.
Loop rule: on the loop's thread.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from mqtt_proxy.listening.counters import FrontCounters
from mqtt_proxy.metrics import ProxyMetrics
from runtime.clock import Clock
from runtime.metrics import Counter

PREFIX = "$SYS/broker/"
_OF_THE_BROKER = {
    "clients_total": "clients/total",
    "clients_connected": "clients/connected",
    "clients_expired": "clients/expired",
    "messages_stored": "messages/stored",
    "retained_messages": "retained messages/count",
}


WINDOWS_MIN = (1, 5, 15)
"""Windows of the load averages."""


class Loads:
    """Rates of counters that only go up, by name: exponentially weighted means of the rates between samples.

    After a window's length two thirds of its mean come from within the window. The first sample gives rates of 0, time
    that stands still changes nothing.
    """

    def __init__(self) -> None:
        self._seen_ms: int | None = None
        self._counts: dict[str, float] = {}
        self._means: dict[tuple[str, int], float] = {}

    def sample(self, counts: Mapping[str, float], now_ms: int) -> None:
        """Take in what the counters say now."""
        if self._seen_ms is not None and now_ms <= self._seen_ms:
            return
        minutes = 0.0 if self._seen_ms is None else (now_ms - self._seen_ms) / 60_000
        for name, count in counts.items():
            rate = (count - self._counts.get(name, count)) / minutes if minutes else 0.0
            for window in WINDOWS_MIN:
                mean = self._means.get((name, window), 0.0)
                self._means[name, window] = rate + (mean - rate) * math.exp(-minutes / window)
        self._counts = dict(counts)
        self._seen_ms = now_ms

    def items(self) -> Iterator[tuple[str, int, float]]:
        """Yield (name, window in minutes, number per minute)."""
        for (name, window), mean in self._means.items():
            yield name, window, mean


class SysValues:
    """Reads the counters when it is asked."""

    def __init__(self, metrics: ProxyMetrics, front: FrontCounters, clock: Clock, connected: Callable[[], int]) -> None:
        self._metrics = metrics
        self._front = front
        self._clock = clock
        self._connected = connected
        self._started_ms = clock.monotonic_ns() // 1_000_000
        self._loads = Loads()
        self._clients_max = 0
        self._memory_bytes_max = 0
        self._said: dict[str, str] = {}
        self._version = f"LightMQ {metadata.version('lightmq')}"
        self.sample()

    def sample(self) -> None:
        """Take in the counters for the load averages; call it regularly."""
        self._clients_max = max(self._clients_max, self._connected())
        self._loads.sample(self._counts(), self._clock.monotonic_ns() // 1_000_000)

    def set_broker_status(self, status: Mapping[str, object]) -> None:
        """Take in the broker's own numbers; what it does not name is not shown."""
        self._said = {topic: str(status[key]) for key, topic in _OF_THE_BROKER.items() if key in status}
        total, connected = status.get("clients_total"), status.get("clients_connected")
        if isinstance(total, int) and isinstance(connected, int):
            self._said["clients/disconnected"] = str(total - connected)
            self._clients_max = max(self._clients_max, connected)

    def read(self) -> dict[bytes, bytes]:
        """Topic -> value, all of them."""
        uptime_s = self._clock.monotonic_ns() // 1_000_000_000 - self._started_ms // 1_000
        # The kernel updates its own maximum with a delay: what was seen now may be above it.
        memory_bytes, peak_bytes = _resident_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
        self._memory_bytes_max = max(self._memory_bytes_max, memory_bytes, peak_bytes)
        values = {
            "version": self._version,
            "uptime": f"{uptime_s} seconds",
            "clients/connected": str(self._connected()),
            "clients/maximum": str(self._clients_max),
            "subscriptions/count": str(int(self._metrics.subscriptions.open.value)),
            "publish/messages/dropped": str(_sum(self._metrics.publishes.refused)),
            "publish/bytes/received": str(self._metrics.publishes.bytes_in.value),
            "heap/current": str(memory_bytes),
            "heap/maximum": str(self._memory_bytes_max),
        }
        values |= {name: str(int(count)) for name, count in self._counts().items() if name not in _LOADS_ONLY}
        values |= {f"load/{_load_name(name)}/{window}min": f"{mean:.2f}" for name, window, mean in self._loads.items()}
        values |= self._said
        return {(PREFIX + name).encode(): value.encode() for name, value in values.items()}

    def _counts(self) -> dict[str, float]:
        metrics, front = self._metrics, self._front
        published, delivered = (
            metrics.publishes.confirmed.value,
            metrics.deliveries.sent.value + metrics.deliveries.retained.value,
        )
        acknowledged = metrics.deliveries.acknowledged.value
        return {
            "messages/received": published + acknowledged + metrics.sessions.opened.value,
            "messages/sent": published + delivered + metrics.sessions.opened.value,
            "publish/messages/received": published,
            "publish/messages/sent": delivered,
            "bytes/received": front.bytes_in.value,
            "bytes/sent": front.bytes_out.value,
            "connections": metrics.sessions.opened.value,
            "sockets": front.opened.value,
        }


_LOADS_ONLY = frozenset({"connections", "sockets"})


def _load_name(name: str) -> str:
    return name.replace("publish/messages/", "publish/")


def _sum(counter: Counter) -> int:
    return int(sum(child.value for child in counter.children.values()))


def _resident_bytes() -> int:
    """Memory this process holds now; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * resource.getpagesize()
