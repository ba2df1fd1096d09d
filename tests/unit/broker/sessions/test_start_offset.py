"""Where a subscription with history begins in its queue."""

from __future__ import annotations

import pytest

from broker.sessions.subscriptions import start_offset
from remoting.protocol.bodies.session_body import HistoryStart
from tests.support.images import placed


@pytest.fixture
def queue(bench) -> int:
    """A queue of ten messages, one a second."""
    queue_id = bench.store.queues.open(b"%LMQ%q")
    for _ in range(10):
        bench.store.append(placed((queue_id,)))
        bench.clock.advance_ms(1_000)
    bench.settle()
    return queue_id


def test_each_start_is_an_offset(bench, queue: int) -> None:
    """By time, by offset, by number; never outside the stored range."""
    begin_ms = bench.clock.now_ms() - 10_000
    wishes = [
        (HistoryStart(from_ms=0), 0),
        (HistoryStart(from_ms=begin_ms + 4_000), 4),
        (HistoryStart(from_ms=begin_ms + 4_001), 5),
        (HistoryStart(from_ms=begin_ms + 60_000), 10),
        (HistoryStart(from_offset=0), 0),
        (HistoryStart(from_offset=7), 7),
        (HistoryStart(from_offset=99), 10),
        (HistoryStart(last=0), 10),
        (HistoryStart(last=3), 7),
        (HistoryStart(last=99), 0),
    ]
    for wish, offset in wishes:
        assert start_offset(bench.store, queue, wish, 10) == offset, wish
