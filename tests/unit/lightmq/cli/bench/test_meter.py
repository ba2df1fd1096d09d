"""Percentiles, losses and repeats against plain counting."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from lightmq.cli.bench.meter import MARK, Latencies, LoadReceiver, LoadSender, body, report


@given(st.lists(st.integers(0, 10**11), min_size=1, max_size=200))
def test_percentiles_are_those_of_the_sorted_times(times_ns: list[int]) -> None:
    taken, other = Latencies(), Latencies()
    for number, one in enumerate(times_ns):
        (taken if number % 2 else other).add(one)
    taken.merge(other)
    assert taken.count == len(times_ns)
    exact = sorted(max(1, one // 1_000) for one in times_ns)
    found = taken.percentiles()
    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        rank = next(at for at in range(1, len(exact) + 1) if at >= max(1, share * len(exact)))
        expected_ms = exact[rank - 1] / 1_000
        assert expected_ms * 0.96 - 0.001 <= found[name] <= expected_ms + 0.001


def test_without_a_time_there_is_no_percentile() -> None:
    assert Latencies().percentiles() == {}


def test_what_is_lost_and_what_comes_twice() -> None:
    sender, receiver = LoadSender(), LoadReceiver(7)
    for number in range(5):
        sender.sent += 1
        if number == 4:
            sender.decided(time.monotonic_ns(), "quota")
            continue
        sender.decided(time.monotonic_ns())
        if number != 2:
            receiver.take(body(7, number, 100))
    receiver.take(body(7, 0, 100))
    receiver.take(body(8, 2, 100))  # of another run
    receiver.take(b"short")
    found = report([sender], [receiver], 2.0, 100)
    assert (found["sent"], found["acknowledged"], found["refused"], found["unanswered"]) == (5, 4, 1, 0)
    assert (found["expected"], found["received"], found["lost"], found["repeated"]) == (4, 3, 1, 1)
    assert (found["published_per_s"], found["reasons"]) == (2.0, {"quota": 1})


def test_a_message_has_its_size() -> None:
    assert [len(body(1, 2, size)) for size in (MARK.size, 100)] == [MARK.size, 100]
