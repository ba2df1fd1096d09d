"""Metrics: plain integers on the hot path, a page for Prometheus when somebody asks.

A component declares what it counts once, when it is built::

    received = registry.counter("rocketmq_messages_in_total", "Messages accepted from producers")
    dropped = registry.counter("rocketmq_drops_total", "Messages dropped", labels=("reason",))
    too_big = dropped.child("too_big")
    received.value += 1 ; too_big.value += 1

Invariant: a name has one kind, one help text and one set of labels in a process; names start with ``rocketmq_``, those
of counters, and of nothing else, end with ``_total``.
Thread rule: a metric is written by one thread (the owner of what it counts); the page may read it at any time.
``prometheus_client`` is imported only when the page is rendered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from prometheus_client.core import Metric as PrometheusMetric

NAME = re.compile(r"rocketmq_[a-z0-9_]+\Z")
CHILDREN_MAX = 1_000
"""Most label combinations of one metric; further ones are counted together under the label value ``other``."""

M = TypeVar("M", bound="Metric")


class Metric:
    """What counters and gauges share: name, help, label names, children by label values."""

    __slots__ = ("children", "help", "labels", "name")
    kind = ""

    def __init__(self, name: str, help_text: str, labels: Sequence[str]) -> None:
        self.name = name
        self.help = help_text
        self.labels = tuple(labels)
        self.children: dict[tuple[str, ...], Any] = {}

    def _child_key(self, values: tuple[str, ...]) -> tuple[str, ...]:
        assert len(values) == len(self.labels), (self.name, values)
        if values in self.children or len(self.children) < CHILDREN_MAX:
            return values
        return ("other",) * len(values)


class Counter(Metric):
    """Only goes up: ``counter.value += n``, or is read from ``function``, which counts, when the page is rendered."""

    __slots__ = ("function", "value")
    kind = "counter"

    def __init__(
        self, name: str, help_text: str, labels: Sequence[str] = (), function: Callable[[], float] | None = None
    ) -> None:
        super().__init__(name, help_text, labels)
        self.value = 0
        self.function = function

    def read(self) -> float:
        """How much was counted so far."""
        return self.function() if self.function is not None else float(self.value)

    def child(self, *values: str, function: Callable[[], float] | None = None) -> Counter:
        """The counter for these label values, made on first use; keep it, do not look it up per message."""
        key = self._child_key(values)
        if key not in self.children:
            self.children[key] = Counter(self.name, self.help)
        child: Counter = self.children[key]
        if function is not None:
            child.function = function  # a restarted component takes its counter over
        return child


class Gauge(Metric):
    """Goes up and down, or is read from ``function`` when the page is rendered."""

    __slots__ = ("function", "value")
    kind = "gauge"

    def __init__(
        self, name: str, help_text: str, labels: Sequence[str] = (), function: Callable[[], float] | None = None
    ) -> None:
        super().__init__(name, help_text, labels)
        self.value: float = 0
        self.function = function

    def read(self) -> float:
        """The present value."""
        return self.function() if self.function is not None else self.value

    def child(self, *values: str, function: Callable[[], float] | None = None) -> Gauge:
        """The gauge for these label values, made on first use."""
        key = self._child_key(values)
        if key not in self.children:
            self.children[key] = Gauge(self.name, self.help, function=function)
        child: Gauge = self.children[key]
        if function is not None:
            child.function = function  # a restarted component takes its gauge over
        return child


class Registry:
    """All metrics of one process; handed to every component that counts something."""

    __slots__ = ("_metrics",)

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def counter(
        self, name: str, help_text: str, labels: Sequence[str] = (), function: Callable[[], float] | None = None
    ) -> Counter:
        """Declare (or get again) a counter; with ``function`` it is read when the page is rendered."""
        counter = self._declare(Counter(name, help_text, labels))
        if function is not None:
            counter.function = function  # a restarted component takes its counter over
        return counter

    def gauge(
        self, name: str, help_text: str, labels: Sequence[str] = (), function: Callable[[], float] | None = None
    ) -> Gauge:
        """Declare (or get again) a gauge; with ``function`` it is read when the page is rendered."""
        gauge = self._declare(Gauge(name, help_text, labels, function))
        if function is not None:
            gauge.function = function  # a restarted component takes its gauge over
        return gauge

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

    def page(self) -> bytes:
        """The Prometheus text page of everything declared here."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[PrometheusMetric]:
        """What a prometheus_client Collector is: one family per metric."""
        for metric in list(self._metrics.values()):
            yield _family(metric)


def _leaves(metric: Metric) -> list[tuple[tuple[str, ...], Any]]:
    return list(metric.children.items()) if metric.labels else [((), metric)]


def _family(metric: Metric) -> PrometheusMetric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family = (CounterMetricFamily if isinstance(metric, Counter) else GaugeMetricFamily)(
        metric.name, metric.help, labels=metric.labels
    )
    for labels, leaf in _leaves(metric):
        family.add_metric(labels, float(leaf.read()))
    return family
