from __future__ import annotations

import sys

import pytest

from runtime.metrics import CHILDREN_MAX, Registry


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


def test_the_page_is_what_prometheus_reads() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    registry = Registry()
    registry.counter("rocketmq_messages_in_total", "Messages in").value += 3
    registry.gauge("rocketmq_lag", "Lag", labels=("queue",)).child("a").value = 1.5
    samples = {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(registry.page().decode())
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
    lost.child("a", function=lambda: 3)  # by a component that was started again
    lost.child("b").value += 1
    values = {"rocketmq_sent_total": 7, "rocketmq_lost_total{a}": 3, "rocketmq_lost_total{b}": 1}
    assert registry.values() == values
    page = registry.page().decode()
    assert "# TYPE rocketmq_sent_total counter\nrocketmq_sent_total 7.0" in page
    with pytest.raises(AssertionError, match="no counter"):
        registry.counter("rocketmq_sent", "Sent")
    with pytest.raises(AssertionError, match="no gauge"):
        registry.gauge("rocketmq_waiting_total", "Waiting")
