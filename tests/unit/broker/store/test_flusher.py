"""Group commit in a thread: back to back, by interval, final failure."""

from __future__ import annotations

import queue
import threading

from broker.store.flusher import Flusher


class Loop:
    """A loop thread made of a queue."""

    def __init__(self) -> None:
        self.due: queue.SimpleQueue = queue.SimpleQueue()

    def turn(self) -> None:
        self.due.get(timeout=10)()


def make(loop: Loop, sync, interval_ms: int = 0):
    flushed, failed = [], []
    flusher = Flusher(
        sync,
        interval_ms=interval_ms,
        schedule=loop.due.put,
        on_flushed=flushed.append,
        on_failed=failed.append,
        position=0,
    )
    return flusher, flushed, failed


def test_what_gathers_during_a_flush_is_the_next_group() -> None:
    """Ten requests during one slow fdatasync cost one more."""
    loop, end, running, go = Loop(), [10], threading.Event(), threading.Event()

    def sync() -> int:
        target = end[0]
        running.set()
        go.wait(10)
        return target

    flusher, flushed, _ = make(loop, sync)
    flusher.request()
    running.wait(10)
    end[0] = 500
    for _ in range(10):
        flusher.request()
    go.set()
    while 500 not in flushed:
        loop.turn()
    flusher.close()
    assert flushed[-1] == 500
    assert flusher.flushes_total <= 4


def test_close_flushes_what_is_left() -> None:
    """Also with a long interval."""
    loop = Loop()
    flusher, flushed, _ = make(loop, lambda: 77, interval_ms=3_600_000)
    flusher.request()
    flusher.close()
    assert flushed == [77]


def test_failure_is_reported_once_and_ends_the_thread() -> None:
    """After the first failed flush there is no second try."""
    loop, calls = Loop(), []

    def sync() -> int:
        calls.append(1)
        raise OSError(5, "gone")

    flusher, flushed, failed = make(loop, sync)
    flusher.request()
    loop.turn()
    flusher.request()
    flusher.close()
    assert (len(calls), flushed, [error.errno for error in failed]) == (1, [], [5])
