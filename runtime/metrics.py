"""Metrics: plain integers on the hot path, rendered as a page for Prometheus on request; and those of a remoting port.

A component declares what it counts once, when it is built::

    received = registry.counter("rocketmq_messages_in_total", "Messages accepted from producers")
    dropped = registry.counter("rocketmq_drops_total", "Messages dropped", labels=("reason",))
    too_big = dropped.child("too_big")
    received.value += 1 ; too_big.value += 1

Every remoting port shows TLS, unfinished frames and requests for what is not offered. The label `code` of such a
request is one of RocketMQ's or our own numbers and `other` for the rest, so that a peer that tries all numbers cannot
make the page grow.
A histogram takes a value for a batch or a request, never for a message; in OpenMetrics' format its ranges show the
traces of sampled messages as exemplars. The page also has what Prometheus' own clients show of a process (`process_*`,
`python_info`) and `lightmq_build_info`.
Invariant: a name has one kind, one help text and one set of labels in a process; names start with ``rocketmq_``; those
of counters, and no others, end with ``_total``. Thread rule: a metric is written by one thread (the owner of what it
counts); the page may read it at any time. ``prometheus_client`` is imported only when the page is rendered.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from remoting.protocol.frames.codes import NAMES, request_name
from remoting.protocol.frames.commands import Command
from runtime.clock import Clock

if TYPE_CHECKING:
    from prometheus_client.core import Metric as PrometheusMetric

    from remoting.protocol.errors import NotOffered
    from remoting.transport.contracts import Peer


NAME = re.compile(r"rocketmq_[a-z0-9_]+\Z")
CHILDREN_MAX = 1_000
"""Most label combinations of one metric; further ones are counted together under the label value ``other``."""
OTHER = "other"
LATENCY_S = (
    *(0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Upper ends of the ranges of durations: from a write into the page cache to a disk or a network that hangs."""
OPENMETRICS = "application/openmetrics-text"
PAGE_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"

Rows = Callable[[], Iterable[tuple[tuple[str, ...], float]]]
"""(label values, number) of everything there is at the moment."""

Exemplar = tuple[str, float, float]
"""Trace id, value and seconds since 1970 of one example; OpenMetrics alone can show it."""

M = TypeVar("M", bound="Metric")
S = TypeVar("S", bound="SingleValue")


class Metric:
    """What all metrics share: name, help, label names, children by label values."""

    __slots__ = ("children", "help", "labels", "name")
    kind = ""

    def __init__(self, name: str, help_text: str, labels: Sequence[str]) -> None:
        self.name = name
        self.help = help_text
        self.labels = tuple(labels)
        self.children: dict[tuple[str, ...], Any] = {}

    def child(self, *values: str) -> Self:
        """The metric for these label values, made on first use; keep it, do not look it up per message."""
        assert len(values) == len(self.labels), (self.name, values)
        if values not in self.children and len(self.children) >= CHILDREN_MAX:
            values = (OTHER,) * len(values)
        child: Self | None = self.children.get(values)
        if child is None:
            child = self.children[values] = self.unlabelled()
        return child

    def unlabelled(self) -> Self:
        """A new metric like this one for one combination of label values."""
        raise NotImplementedError


class SingleValue(Metric):
    """A counter or a gauge: one number, or one for each combination of label values."""

    __slots__ = ("function", "rows", "value")

    def __init__(
        self, name: str, help_text: str, labels: Sequence[str] = (), function: Callable[[], float] | None = None
    ) -> None:
        super().__init__(name, help_text, labels)
        self.value: float = 0
        self.function = function
        """What the page shows instead of `value`, read when it is rendered."""
        self.rows: Rows | None = None
        """With labels: what the page shows instead of children, read when it is rendered; its maker bounds it."""

    def unlabelled(self) -> Self:
        """A new one for one combination of label values."""
        return type(self)(self.name, self.help)

    def child(self, *values: str, function: Callable[[], float] | None = None) -> Self:
        """As every metric's; with ``function`` it is read when the page is rendered."""
        child = super().child(*values)
        if function is not None:
            child.function = function  # a restarted component takes its metric over
        return child

    def read(self) -> float:
        """The present value."""
        return self.function() if self.function is not None else float(self.value)


class Counter(SingleValue):
    """Only goes up: ``counter.value += n``, or is read from ``function``, which counts, when the page is rendered."""

    __slots__ = ()
    kind = "counter"
    value: int


class Gauge(SingleValue):
    """Goes up and down, or is read from ``function`` when the page is rendered."""

    __slots__ = ()
    kind = "gauge"


class Histogram(Metric):
    """How often values fell into which range: ``histogram.observe(seconds)`` or, for many, ``add(counts, total)``.

    A value belongs to the first range whose upper end it does not exceed. Each range may show one exemplar.
    """

    __slots__ = ("bounds", "counts", "exemplars", "total")
    kind = "histogram"

    def __init__(self, name: str, help_text: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        """`bounds`: upper ends of the ranges, rising; one more range is without an end."""
        super().__init__(name, help_text, labels)
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        """Values per range; of a range without the ranges below it."""
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """By the number of the range."""

    def unlabelled(self) -> Self:
        """A new one for one combination of label values."""
        return type(self)(self.name, self.help, self.bounds)

    def observe(self, value: float) -> None:
        """Add one to the range of this value, and the value to the sum."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def exemplify(self, value: float, trace_id: str, time_s: float) -> None:
        """Show this trace (32 hex digits) as an example of values in the range of this one; it is not counted."""
        self.exemplars[bisect_left(self.bounds, value)] = (trace_id, value, time_s)

    def add(self, counts: Iterable[int], total: float) -> None:
        """Count many values: how many fell into each range from the first on, and their sum."""
        for at, count in enumerate(counts):
            self.counts[at] += count
        self.total += total

    def read(self) -> float:
        """How many values were counted."""
        return float(sum(self.counts))


class Registry:
    """All metrics of one process; handed to every component that counts something."""

    __slots__ = ("_metrics",)

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def counter(
        self, name: str, help_text: str, labels: Sequence[str] = (), function: Callable[[], float] | None = None
    ) -> Counter:
        """Declare (or get again) a counter; with ``function`` it is read when the page is rendered."""
        return self._single(Counter(name, help_text, labels, function))

    def gauge(
        self, name: str, help_text: str, labels: Sequence[str] = (), function: Callable[[], float] | None = None
    ) -> Gauge:
        """Declare (or get again) a gauge; with ``function`` it is read when the page is rendered."""
        return self._single(Gauge(name, help_text, labels, function))

    def _single(self, metric: S) -> S:
        known = self._declare(metric)
        if metric.function is not None:
            known.function = metric.function  # a restarted component takes its metric over
        return known

    def rows(self, name: str, help_text: str, labels: Sequence[str], rows: Rows) -> None:
        """Declare (or take over) a gauge whose label values and numbers are read when the page is rendered."""
        self._declare(Gauge(name, help_text, labels)).rows = rows

    def histogram(
        self, name: str, help_text: str, bounds: Sequence[float] = LATENCY_S, labels: Sequence[str] = ()
    ) -> Histogram:
        """Declare (or get again) a histogram with these upper bounds."""
        histogram = self._declare(Histogram(name, help_text, bounds, labels))
        assert histogram.bounds == tuple(bounds), f"{name} is declared twice, differently"
        return histogram

    def _declare(self, metric: M) -> M:
        assert NAME.match(metric.name), metric.name
        assert isinstance(metric, Counter) == metric.name.endswith("_total"), f"{metric.name} is no {metric.kind}"
        known = self._metrics.setdefault(metric.name, metric)
        assert type(known) is type(metric), f"{metric.name} is declared twice, as different kinds"
        assert (known.help, known.labels) == (metric.help, metric.labels), (
            f"{metric.name} is declared twice, differently"
        )
        return known  # of the same type, asserted above

    def metrics(self) -> Iterable[Metric]:
        """Every declared metric, in order of declaration."""
        return self._metrics.values()

    def values(self) -> dict[str, float]:
        """A flat picture for JSON and tests: ``name`` or ``name{value}`` -> value."""
        picture: dict[str, float] = {}
        for metric in self._metrics.values():
            for labels, leaf in _leaves(metric):
                suffix = "{" + ",".join(labels) + "}" if labels else ""
                picture[metric.name + suffix] = float(leaf.read())
        return picture

    def page(self, accepted: str = "") -> tuple[str, bytes]:
        """(content type, everything declared here and what is known of the process).

        In OpenMetrics' format if the header `accepted` names it, else in that of Prometheus.
        """
        from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, generate_latest
        from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        if OPENMETRICS in accepted:
            return OPENMETRICS_TYPE, bytes(generate_openmetrics(registry))  # type: ignore[no-untyped-call]
        return PAGE_TYPE, generate_latest(registry)

    def collect(self) -> Iterator[PrometheusMetric]:
        """What a prometheus_client Collector is: one family per metric."""
        for metric in list(self._metrics.values()):
            yield _family(metric)
        yield _build()


def _leaves(metric: Metric) -> list[tuple[tuple[str, ...], Any]]:
    if isinstance(metric, SingleValue) and metric.rows is not None:
        return [(labels, _Number(value)) for labels, value in metric.rows()]
    return list(metric.children.items()) if metric.labels else [((), metric)]


class _Number(float):
    """One number of rows, read as metrics are."""

    __slots__ = ()

    def read(self) -> float:
        """Return itself, so that rows are read like metrics."""
        return float(self)


def _family(metric: Metric) -> PrometheusMetric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    if isinstance(metric, Histogram):
        ends = [*map(str, metric.bounds), "+Inf"]
        ranges = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, leaf in _leaves(metric):
            ranges.add_metric(labels, _buckets(ends, leaf), leaf.total)
        return ranges
    family = (CounterMetricFamily if isinstance(metric, Counter) else GaugeMetricFamily)(
        metric.name, metric.help, labels=metric.labels
    )
    for labels, leaf in _leaves(metric):
        family.add_metric(labels, float(leaf.read()))
    return family


def _buckets(ends: Sequence[str], leaf: Histogram) -> list[Any]:
    """(upper end, values up to it, and an exemplar where there is one) of every range, in prometheus_client's form."""
    from prometheus_client.samples import Exemplar as PrometheusExemplar

    found: list[Any] = []
    for at, (end, count) in enumerate(zip(ends, accumulate(leaf.counts), strict=True)):
        shown = leaf.exemplars.get(at)
        if shown is None:
            found.append((end, count))
        else:
            trace_id, value, time_s = shown
            found.append((end, count, PrometheusExemplar({"trace_id": trace_id}, value, time_s)))
    return found


def _build() -> PrometheusMetric:
    """The installed version, as the label of a constant."""
    from importlib import metadata

    from prometheus_client.core import GaugeMetricFamily

    try:
        version = metadata.version("lightmq")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        version = "unknown"
    family = GaugeMetricFamily("lightmq_build_info", "Always 1; the label has the version", labels=("version",))
    family.add_metric((version,), 1)
    return family


TLS = (
    ("tls_handshakes_total", "Connections at the remoting port on which TLS began, since the start"),
    ("tls_failures_total", "Connections closed because TLS was not agreed upon or was broken"),
    ("certificate_reloads_total", "Times the certificate of the remoting port was read again"),
    ("certificate_failures_total", "Times it could not be used; the old one stayed"),
)
"""In the order of `PortCounts.tls_counts`."""
READ = {
    "proved": ("reserved_bytes", "Bytes reserved for requests that arrive, of authenticated peers"),
    "unproven": ("unproven_bytes", "Bytes held of requests that arrive, of peers that have proved no key"),
    "unproven_connection": (
        "cut_unproven_connection_total",
        "Connections cut: too much without a key for one connection",
    ),
    "unproven_address": ("cut_unproven_address_total", "Connections cut: too much without a proof for one address"),
    "unproven_total": ("cut_unproven_all_total", "Connections cut: too much without a proof in all"),
    "budget": ("cut_budget_total", "Connections cut: too many waited for room to read"),
    "deadline": ("cut_deadline_total", "Connections cut: a request was not finished in time"),
    "foreign": ("cut_foreign_total", "Connections closed: they spoke HTTP, gRPC or MQTT"),
    "refusals": ("cut_refusals_total", "Connections cut: refused again and again without a proved key"),
    "silent": ("cut_silent_total", "Connections cut: no key proved, and silent for too long"),
    "slow": ("cut_slow_total", "Connections cut: a request arrived too slowly"),
}
"""By the keys of `PortCounts.read_counts`."""
LOG_INTERVAL_S = 60


class PortCounts(Protocol):
    """The remoting server's counts."""

    def tls_counts(self) -> tuple[int, int, int, int]:
        """Connections on which TLS began, on which it failed; certificates taken into use again, not usable."""
        ...

    def read_counts(self) -> dict[str, int]:
        """Bytes of unfinished frames now, by whether the peer proved a key, and connections cut, by reason."""
        ...


def declare_port_metrics(registry: Registry, server: PortCounts) -> None:
    """Show the counts of a server; at most one server per registry."""
    for at, (name, text) in enumerate(TLS):
        registry.counter(
            f"rocketmq_remoting_{name}",
            text,
            function=lambda at=at: server.tls_counts()[at],  # type: ignore[misc]
        )
    for key, (name, text) in READ.items():
        declare = registry.counter if name.endswith("_total") else registry.gauge
        declare(
            f"rocketmq_remoting_read_{name}",
            text,
            function=lambda key=key: server.read_counts()[key],  # type: ignore[misc]
        )


HANDLING_S = (0.000_01, 0.000_05, 0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5)
"""Upper ends of the ranges of a handler's time: one that keeps the loop for long delays all others."""


class RequestTimes:
    """How long handlers keep the loop, by request; call it with the code and nanoseconds."""

    def __init__(self, registry: Registry) -> None:
        self._seconds = registry.histogram(
            "rocketmq_request_handling_seconds",
            "Time that the loop spent on a request, without what it then waits for",
            HANDLING_S,
            labels=("request",),
        )
        self._by_code: dict[int, Histogram] = {}

    def __call__(self, code: int, elapsed_ns: int) -> None:
        """A handler has returned."""
        histogram = self._by_code.get(code)
        if histogram is None:
            histogram = self._by_code[code] = self._seconds.child(NAMES.get(code, OTHER))
        histogram.observe(elapsed_ns / 1e9)


class UnsupportedRequests:
    """Counts requests for what is not offered, and logs one line per code and `LOG_INTERVAL_S` for the operator."""

    def __init__(self, registry: Registry, clock: Clock, log: Any) -> None:
        self._counter = registry.counter(
            "rocketmq_unsupported_requests_total",
            "Requests refused because what they ask for is not offered, by request code",
            labels=("code",),
        )
        self._clock = clock
        self._log = log
        self._logged: dict[str, tuple[int, int]] = {}

    def record(self, peer: Peer, command: Command, refused: NotOffered) -> None:
        """Count a client's request."""
        label = str(command.code) if command.code in NAMES else OTHER
        child = self._counter.child(label)
        child.value += 1
        now_s = self._clock.monotonic_ns() // 1_000_000_000
        last_s, count = self._logged.get(label, (now_s - LOG_INTERVAL_S, 0))
        if now_s - last_s >= LOG_INTERVAL_S:
            self._logged[label] = now_s, child.value
            self._log.warning(
                "request_not_supported", code=command.code, name=request_name(command.code), client=peer.address,
                language=command.language, version=command.version, since_last=child.value - count,
                answer=refused.code, remark=refused.remark.strip(),
            )  # fmt: skip
