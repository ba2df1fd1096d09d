"""The `$SYS` tree: served by the proxy itself, never stored. Its values have Mosquitto's names.

    $SYS/broker/version, uptime, timestamp
    $SYS/broker/clients/connected, disconnected, total, maximum, expired
    $SYS/broker/messages/received, sent, stored      bytes/received, sent
    $SYS/broker/publish/messages/received, sent, dropped      publish/bytes/received
    $SYS/broker/subscriptions/count    retained messages/count    heap/current, heap/maximum
    $SYS/broker/load/<messages|publish|bytes>/<received|sent>/1min, 5min, 15min    load/connections, load/sockets

A proxy's own counts begin at its start, and its subscriptions are those of clients connected to it; clients, retained
and stored messages are the broker's, of all its proxies, as of its last answer. `messages/...` are PUBLISHes, their
acknowledgements and CONNECTs.

The broker treats a subscription whose filter begins with `$SYS/` as an ordinary one, and so keeps it in durable
sessions; its queue stays empty, because no client may publish there. After the SUBACK, or after the CONNACK of a
resumed session, the subscriber gets all values that match with the retain flag, later those that changed, all at QoS 0.
`#` and `+/...` do not match, as the standard requires for topics that begin with `$`. A slow subscriber is skipped for
a while and then given what has changed since: only the newest value counts.
Invariant: one timer and one request per interval, however many follow. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
import math
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

import msgspec

from mqtt_proxy.link import Link
from mqtt_proxy.metrics import FrontCounters, ProxyMetrics
from mqtt_proxy.mqtt.session.session import Session
from remoting.access.rules import READ_LIVE, READ_RETAINED
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.records.topics import matches
from runtime.clock import Clock
from runtime.logs import get_logger
from runtime.metrics import Counter

BROKER_PREFIX = "$SYS/broker/"
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

    About two thirds of a mean come from within its window. The first sample gives rates of 0; a sample at the same time
    as the last changes nothing.
    """

    def __init__(self) -> None:
        self._seen_ms: int | None = None
        self._counts: dict[str, float] = {}
        self._means: dict[tuple[str, int], float] = {}

    def sample(self, counts: Mapping[str, float], now_ms: int) -> None:
        """Add the counters' present values."""
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


def version() -> str:
    """The version of this distribution."""
    return metadata.version("lightmq")


class SysValues:
    """Reads the counters on request."""

    def __init__(self, metrics: ProxyMetrics, front: FrontCounters, clock: Clock, connected: Callable[[], int]) -> None:
        self._metrics = metrics
        self._front = front
        self._clock = clock
        self._connected = connected
        self._started_ms = clock.monotonic_ns() // 1_000_000
        self._loads = Loads()
        self._clients_max = 0
        self._memory_bytes_max = 0
        self._from_broker: dict[str, str] = {}
        self._version = f"LightMQ {version()}"
        self.sample()

    def sample(self) -> None:
        """Sample the counters for the load averages; call it regularly."""
        self._clients_max = max(self._clients_max, self._connected())
        self._loads.sample(self._counts(), self._clock.monotonic_ns() // 1_000_000)

    def set_broker_status(self, status: Mapping[str, object]) -> None:
        """Take over the broker's own numbers; what it does not name is not shown."""
        self._from_broker = {topic: str(status[key]) for key, topic in _OF_THE_BROKER.items() if key in status}
        total, connected = status.get("clients_total"), status.get("clients_connected")
        if isinstance(total, int) and isinstance(connected, int):
            self._from_broker["clients/disconnected"] = str(total - connected)
            self._clients_max = max(self._clients_max, connected)

    def read(self) -> dict[bytes, bytes]:
        """Topic -> value, all of them."""
        uptime_s = self._clock.monotonic_ns() // 1_000_000_000 - self._started_ms // 1_000
        # The kernel updates its own maximum with a delay: the present value may be above it.
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
        values |= self._from_broker
        return {(BROKER_PREFIX + name).encode(): value.encode() for name, value in values.items()}

    def _counts(self) -> dict[str, float]:
        metrics, front = self._metrics, self._front
        deliveries, published = metrics.deliveries, _sum(metrics.publishes.confirmed)
        delivered = _sum(deliveries.sent) + deliveries.retained.value
        acknowledged, opened = deliveries.acknowledged.value, _sum(metrics.sessions.opened)
        return {
            "messages/received": published + acknowledged + opened,
            "messages/sent": published + delivered + opened,
            "publish/messages/received": published,
            "publish/messages/sent": delivered,
            "bytes/received": front.bytes_in.value,
            "bytes/sent": front.bytes_out.value,
            "connections": opened,
            "sockets": _sum(front.opened),
        }


_LOADS_ONLY = frozenset({"connections", "sockets"})


def _load_name(name: str) -> str:
    return name.replace("publish/messages/", "publish/")


def _sum(counter: Counter) -> int:
    return int(sum(child.value for child in counter.children.values()))


def _resident_bytes() -> int:
    """Memory of this process now; 0 where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * resource.getpagesize()


PREFIX = "$SYS/"

LOG = get_logger("proxy.sys")


class SysFollower:
    """The `$SYS` filters of one session."""

    __slots__ = ("_flush", "_may_read", "_session", "_tree", "_writable", "filters", "seen")

    def __init__(
        self,
        tree: SysTree,
        session: Session,
        flush: Callable[[], None],
        writable: Callable[[], bool],
        may_read: Callable[[bytes, int], bool],
    ) -> None:
        self._tree = tree
        self._session = session
        self._flush = flush
        self._writable = writable
        self._may_read = may_read
        self.filters: dict[str, int] = {}
        """Filter -> subscription identifier, 0 for none."""
        self.seen = 0
        """The last round whose values it has received in full."""

    def follow(self, topic_filter: str, subscription_id: int = 0, *, with_values: bool = True) -> None:
        """Send changes of what the filter matches from now on, and if requested all values as retained messages now."""
        self.filters[topic_filter] = subscription_id
        self._tree.follow(self, topic_filter if with_values else None)

    def unfollow(self, topic_filter: str) -> None:
        """The filter was unsubscribed; it need not be one of these."""
        if topic_filter in self.filters:
            del self.filters[topic_filter]
            if not self.filters:
                self._tree.unfollow(self)

    @property
    def ended(self) -> bool:
        """Whether the session has ended."""
        return self._session.state.close_reason is not None

    @property
    def takes(self) -> bool:
        """Whether it can be sent something now."""
        return not self.ended and self._writable()

    def send_matching(self, topic_filter: str, values: Iterable[tuple[bytes, bytes]]) -> None:
        """Send those of these values that this filter matches, as retained messages."""
        ids = [self.filters[topic_filter]] if self.filters[topic_filter] else []
        for topic, value in values:
            if matches(topic_filter, topic) and self._may_read(topic, READ_RETAINED):
                self._session.deliveries.deliver(topic, value, 0, True, False, None, None, ids)
        self._flush()

    def send_changed(self, values: Iterable[tuple[bytes, bytes]]) -> None:
        """Send those of these values that some filter matches, once each, with the identifiers of all that do."""
        for topic, value in values:
            found = [each for topic_filter, each in self.filters.items() if matches(topic_filter, topic)]
            if found and self._may_read(topic, READ_LIVE):
                ids = [each for each in found if each]
                self._session.deliveries.deliver(topic, value, 0, False, False, None, None, ids)
        self._flush()


class SysTree:
    """All followers, the newest values, and when each changed."""

    def __init__(self, values: SysValues, link: Link, *, interval_s: int) -> None:
        self._values = values
        self._link = link
        self._interval_s = interval_s
        self._followers: dict[SysFollower, None] = {}
        self._newest: dict[bytes, tuple[bytes, int]] = {}
        self._round = 0
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Future[bytes] | None = None

    def __len__(self) -> int:
        return len(self._followers)

    def start(self) -> None:
        """Read the values and request the broker's own, now and at every interval, unless that is 0."""
        if self._interval_s:
            self._read(self._round)
            self._ask()
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._tick)

    def stop(self) -> None:
        """Notify no follower any more."""
        if self._timer is not None:
            self._timer.cancel()

    def follower(
        self,
        session: Session,
        flush: Callable[[], None],
        writable: Callable[[], bool],
        may_read: Callable[[bytes, int], bool],
    ) -> SysFollower:
        """The follower of a session, which follows nothing yet."""
        return SysFollower(self, session, flush, writable, may_read)

    def follow(self, follower: SysFollower, topic_filter: str | None) -> None:
        """Notify it of changes; send the present values that this filter matches."""
        if not self._interval_s:
            return
        if follower not in self._followers:
            follower.seen = self._round
            self._followers[follower] = None
        if topic_filter is not None:
            follower.send_matching(topic_filter, ((topic, value) for topic, (value, _) in self._newest.items()))

    def unfollow(self, follower: SysFollower) -> None:
        """It follows nothing any more."""
        self._followers.pop(follower, None)

    def _tick(self) -> None:
        self._round += 1
        self._values.sample()
        self.start()
        for follower in [one for one in self._followers if one.ended]:
            del self._followers[follower]
        for follower in self._followers:
            if follower.takes:
                self._notify(follower)

    def _notify(self, follower: SysFollower) -> None:
        changed = [(topic, value) for topic, (value, since) in self._newest.items() if since > follower.seen]
        follower.seen = self._round
        if changed:
            follower.send_changed(changed)

    def _read(self, told_in: int) -> None:
        """Note which values changed, to be sent in this round."""
        for topic, value in self._values.read().items():
            known = self._newest.get(topic)
            if known is None or known[0] != value:
                self._newest[topic] = (value, told_in)

    def _ask(self) -> None:
        """Request the broker's numbers: new subscribers get them from then on, others in the next round."""
        if self._link.up and (self._asking is None or self._asking.done()):
            self._asking = self._link.post(RequestCode.CLUSTER_STATUS, b"")
            self._asking.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Future[bytes]) -> None:
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            LOG.debug("broker_status_unknown", error=str(error))
            return
        try:
            status = msgspec.json.decode(task.result(), type=dict[str, object])
        except msgspec.DecodeError as problem:
            LOG.warning("broker_status_unreadable", error=str(problem))
            return
        self._values.set_broker_status(status)
        self._read(self._round + 1)
