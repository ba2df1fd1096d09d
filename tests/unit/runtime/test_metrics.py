"""Counts of a remoting port are on the page; unknown requests are counted by code, and logged now and then."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from remoting.protocol.errors import NotOffered
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from runtime.metrics import (
    CHILDREN_MAX,
    LOG_INTERVAL_S,
    READ,
    Registry,
    RequestTimes,
    UnsupportedRequests,
    declare_port_metrics,
)
from tests.support.clock import ManualClock

REFUSED = NotOffered(3, " not offered")


def test_counters_are_plain_numbers_and_declared_once() -> None:
    registry = Registry()
    counter = registry.counter("rocketmq_messages_in_total", "Messages in")
    counter.value += 3
    assert registry.counter("rocketmq_messages_in_total", "Messages in") is counter
    assert registry.values() == {"rocketmq_messages_in_total": 3}
    with pytest.raises(AssertionError):
        registry.counter("rocketmq_messages_in_total", "Something else")
    with pytest.raises(AssertionError):
        registry.gauge("rocketmq_messages_in_total", "Messages in")
    with pytest.raises(AssertionError):
        registry.counter("messages", "No prefix")


def test_label_values_have_their_own_numbers_up_to_a_limit() -> None:
    registry = Registry()
    drops = registry.counter("rocketmq_drops_total", "Drops", labels=("reason",))
    drops.child("full").value += 2
    assert drops.child("full").value == 2
    for number in range(CHILDREN_MAX + 5):
        drops.child(str(number)).value += 1
    assert drops.child("one more") is drops.child("other")
    assert len(drops.children) == CHILDREN_MAX + 1
    assert registry.values()["rocketmq_drops_total{full}"] == 2


def test_a_gauge_may_be_a_function() -> None:
    registry = Registry()
    gauge = registry.gauge("rocketmq_lag", "Lag", function=lambda: 7)
    assert gauge.read() == 7
    assert registry.gauge("rocketmq_lag", "Lag", function=lambda: 8).read() == 8
    plain = registry.gauge("rocketmq_sessions", "Sessions", labels=("kind",))
    plain.child("open").value = 2
    plain.child("asked", function=lambda: 9)
    assert registry.values() == {"rocketmq_lag": 8, "rocketmq_sessions{open}": 2, "rocketmq_sessions{asked}": 9}


def test_a_histogram_counts_by_ranges() -> None:
    """The page has the ranges added up."""
    registry = Registry()
    histogram = registry.histogram("rocketmq_lateness_seconds", "Lateness", (0.5, 1))
    histogram.add([2], 0.6)
    histogram.add([0, 1, 1], 3.7)
    assert registry.histogram("rocketmq_lateness_seconds", "Lateness", (0.5, 1)) is histogram
    with pytest.raises(AssertionError):
        registry.histogram("rocketmq_lateness_seconds", "Lateness", (0.5, 2))
    assert (histogram.counts, histogram.total) == ([2, 1, 1], pytest.approx(4.3))
    assert registry.values() == {"rocketmq_lateness_seconds": 4}
    page = registry.page()[1].decode()
    for line in (
        'rocketmq_lateness_seconds_bucket{le="0.5"} 2.0',
        'rocketmq_lateness_seconds_bucket{le="1"} 3.0',
        'rocketmq_lateness_seconds_bucket{le="+Inf"} 4.0',
        "rocketmq_lateness_seconds_count 4.0",
        "rocketmq_lateness_seconds_sum 4.3",
    ):
        assert line in page


def test_exemplars_are_in_openmetrics_alone() -> None:
    registry = Registry()
    histogram = registry.histogram("rocketmq_lateness_seconds", "Lateness", (0.5, 1))
    histogram.observe(0.7)
    histogram.exemplify(0.6, "00000000000000000000000000000007", 1_700_000_000.5)
    histogram.exemplify(0.7, "00000000000000000000000000000008", 1_700_000_001.5)
    _, page = registry.page("application/openmetrics-text")
    (line,) = (line for line in page.decode().splitlines() if 'le="1"' in line)
    assert line.endswith('1.0 # {trace_id="00000000000000000000000000000008"} 0.7 1700000001.5')
    assert "trace_id" not in registry.page()[1].decode()


def test_the_page_is_what_prometheus_reads() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    registry = Registry()
    registry.counter("rocketmq_messages_in_total", "Messages in").value += 3
    registry.gauge("rocketmq_lag", "Lag", labels=("queue",)).child("a").value = 1.5
    samples = {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(registry.page()[1].decode())
        for sample in family.samples
    }
    assert samples["rocketmq_messages_in_total", ()] == 3
    assert samples["rocketmq_lag", ("a",)] == 1.5
    assert "prometheus_client" in sys.modules


def test_a_counter_may_be_read_from_what_counts_and_is_the_only_kind_that_ends_with_total() -> None:
    registry = Registry()
    registry.counter("rocketmq_sent_total", "Sent", function=lambda: 7)
    lost = registry.counter("rocketmq_lost_total", "Lost", labels=("reason",))
    lost.child("a", function=lambda: 2)
    lost.child("a", function=lambda: 3)  # by a component that was restarted
    lost.child("b").value += 1
    values = {"rocketmq_sent_total": 7, "rocketmq_lost_total{a}": 3, "rocketmq_lost_total{b}": 1}
    assert registry.values() == values
    page = registry.page()[1].decode()
    assert "# TYPE rocketmq_sent_total counter\nrocketmq_sent_total 7.0" in page
    with pytest.raises(AssertionError, match="no counter"):
        registry.counter("rocketmq_sent", "Sent")
    with pytest.raises(AssertionError, match="no gauge"):
        registry.gauge("rocketmq_waiting_total", "Waiting")


class Port:
    tls = (0, 0, 0, 0)

    def tls_counts(self) -> tuple[int, int, int, int]:
        return self.tls

    def read_counts(self) -> dict[str, int]:
        return {key: at for at, key in enumerate(READ, 1)}


def test_every_count_is_shown_as_it_is_now() -> None:
    """Read again for each page."""
    registry, port = Registry(), Port()
    declare_port_metrics(registry, port)
    port.tls = (5, 2, 1, 3)
    values = registry.values()
    assert [values[name] for name in TLS_NAMES] == [5, 2, 1, 3]
    page = registry.page()[1].decode()
    for at, (name, _) in enumerate(READ.values(), 1):
        assert f"\nrocketmq_remoting_read_{name} {at}" in page


TLS_NAMES = (
    "rocketmq_remoting_tls_handshakes_total",
    "rocketmq_remoting_tls_failures_total",
    "rocketmq_remoting_certificate_reloads_total",
    "rocketmq_remoting_certificate_failures_total",
)


class Log:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def warning(self, _event: str, **fields: Any) -> None:
        self.lines.append(fields)


def client_at(address: str) -> Any:
    return SimpleNamespace(address=address)


def test_known_numbers_have_a_label_and_all_others_share_one() -> None:
    registry, log = Registry(), Log()
    requests = UnsupportedRequests(registry, ManualClock(), log)
    for code in [RequestCode.POP_MESSAGE, RequestCode.POP_MESSAGE, *range(1_000_000, 1_003_000)]:
        requests.record(client_at("10.0.0.1:5"), Command(code), REFUSED)
    page = registry.page()[1].decode()
    assert 'rocketmq_unsupported_requests_total{code="200050"} 2.0' in page
    assert 'rocketmq_unsupported_requests_total{code="other"} 3000.0' in page
    assert page.count("rocketmq_unsupported_requests_total{") == 2
    assert len(log.lines) == 2


def test_a_line_names_the_client_and_comes_again_after_a_while() -> None:
    clock, log = ManualClock(), Log()
    first_client, second_client = client_at("10.0.0.1:5"), client_at("10.0.0.2:5")
    requests = UnsupportedRequests(Registry(), clock, log)
    for _ in range(5):
        requests.record(first_client, Command(RequestCode.RECALL_MESSAGE, language="JAVA", version=485), REFUSED)
    clock.advance_ms(LOG_INTERVAL_S * 1_000)
    requests.record(second_client, Command(RequestCode.RECALL_MESSAGE, language="GO", version=317), REFUSED)
    first, second = log.lines
    assert first == {
        "code": 370, "name": "RECALL_MESSAGE", "client": "10.0.0.1:5", "language": "JAVA", "version": 485,
        "since_last": 1, "answer": 3, "remark": "not offered",
    }  # fmt: skip
    assert second["client"] == "10.0.0.2:5"
    assert second["since_last"] == 5


def test_a_histogram_with_labels_takes_single_values() -> None:
    """Each on the page for itself, and a value at the end of a range belongs to it."""
    registry = Registry()
    times = registry.histogram("rocketmq_request_seconds", "Times", (0.5, 1), labels=("request",))
    for seconds in (0.5, 0.6, 7.0):
        times.child("PULL").observe(seconds)
    times.child("SEND").observe(0.1)
    assert times.child("PULL").counts == [1, 1, 1]
    page = registry.page()[1].decode()
    assert 'rocketmq_request_seconds_bucket{le="1",request="PULL"} 2.0' in page
    assert 'rocketmq_request_seconds_count{request="SEND"} 1.0' in page
    assert registry.values()["rocketmq_request_seconds{PULL}"] == 3


def test_rows_are_read_anew_for_each_page() -> None:
    """Label values come and go with what they name."""
    registry, rows = Registry(), {("a",): 1.0}
    registry.rows("rocketmq_lag_messages", "Lag", ("consumer_group",), rows.items)
    assert registry.values() == {"rocketmq_lag_messages{a}": 1}
    rows.clear()
    rows["b",] = 2.0
    assert 'rocketmq_lag_messages{consumer_group="b"} 2.0' in registry.page()[1].decode()
    assert registry.values() == {"rocketmq_lag_messages{b}": 2}


def test_the_page_is_openmetrics_for_who_accepts_it() -> None:
    """With the process and the build, in both formats."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    registry = Registry()
    registry.counter("rocketmq_messages_in_total", "Messages in").value += 3
    kind, page = registry.page("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert kind.startswith("application/openmetrics-text")
    families = {family.name: family for family in text_string_to_metric_families(page.decode())}
    assert families["rocketmq_messages_in"].samples[0].value == 3
    assert {
        "process_cpu_seconds",
        "process_resident_memory_bytes",
        "python_info",
        "lightmq_build_info",
    } <= families.keys()
    assert registry.page("text/plain")[0].startswith("text/plain")


def test_handlers_times_have_the_names_of_their_requests() -> None:
    """Unknown codes share one label value."""
    registry = Registry()
    times = RequestTimes(registry)
    times(RequestCode.PULL_MESSAGE, 2_000_000)
    for code in (1_000_000, 1_000_001):
        times(code, 1_000)
    assert registry.values() == {
        "rocketmq_request_handling_seconds{PULL_MESSAGE}": 1,
        "rocketmq_request_handling_seconds{other}": 2,
    }
