"""Rates are those of their spans, and days begin with the counter as it was."""

from __future__ import annotations

from broker.rocketmq.admin import DAY_MS, Rates


def test_each_span_has_its_own_rate() -> None:
    rates, count = Rates(), 0
    assert rates.per_second() == (0.0, 0.0, 0.0)
    for second in range(1_000):
        count += 100 if second >= 990 else 10
        rates.sample(second * 1_000, count)
    ten, minute, ten_minutes = rates.per_second()
    assert ten == 100
    assert minute == (10 * 100 + 50 * 10) / 60
    assert ten_minutes == (10 * 100 + 590 * 10) / 600


def test_frequent_and_rare_samples_give_the_same_rate() -> None:
    rates = Rates()
    for at_ms in range(0, 20_000, 50):
        rates.sample(at_ms, at_ms // 10)
    assert rates.per_second() == (100.0, 100.0, 100.0)
    rare = Rates()
    rare.sample(0, 0)
    rare.sample(30_000, 3_000)
    assert rare.per_second() == (0.0, 100.0, 100.0)


def test_a_day_begins_with_the_counter_as_it_was() -> None:
    rates = Rates()
    rates.sample(DAY_MS - 2_000, 5)
    rates.sample(DAY_MS + 1, 7)
    assert (rates.yesterday_morning, rates.today_morning) == (0, 7)
    rates.sample(2 * DAY_MS, 11)
    assert (rates.yesterday_morning, rates.today_morning) == (7, 11)
    rates.sample(5 * DAY_MS, 12)
    assert (rates.yesterday_morning, rates.today_morning) == (12, 12)


def test_a_clock_that_was_set_back_ends_nothing() -> None:
    rates = Rates()
    for at_ms, count in ((10_000, 0), (11_000, 10), (3_000, 20), (4_000, 30)):
        rates.sample(at_ms, count)
    assert rates.per_second()[0] == 10.0
