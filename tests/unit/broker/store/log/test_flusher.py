"""Group commit in a thread: back to back, by interval, final failure."""

from __future__ import annotations

import queue
import threading

from broker.store.log.flusher import INLINE_BYTES_MAX, INLINE_NS_MAX, SLOW_PAUSE_MIN, Flusher, Inline


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


class Turn:
    """The end of a loop's turn, a clock that moves as told, and a backlog."""

    def __init__(self) -> None:
        self.due: list = []
        self.backlog_bytes = 10
        self.now_ns = 0
        self.busy = False

    def end(self) -> None:
        due, self.due = self.due, []
        for function in due:
            function()


def make_inline(loop: Loop, turn: Turn, sync):
    flushed, failed = [], []
    flusher = Flusher(
        sync,
        interval_ms=0,
        schedule=loop.due.put,
        on_flushed=flushed.append,
        on_failed=failed.append,
        position=0,
        inline=Inline(
            soon=lambda function: turn.due.append(function),
            backlog=lambda: turn.backlog_bytes,
            busy=lambda: turn.busy,
            monotonic_ns=lambda: turn.now_ns,
        ),
    )
    return flusher, flushed, failed


def test_a_little_is_flushed_at_the_end_of_the_turn() -> None:
    """Once for all requests of the turn, on the loop's own thread; much, or a busy disk, is the thread's."""
    loop, turn, threads = Loop(), Turn(), []

    def sync() -> int:
        threads.append(threading.current_thread().name)
        return len(threads)

    flusher, flushed, _ = make_inline(loop, turn, sync)
    for _ in range(3):
        flusher.request()
    assert not threads
    turn.end()
    assert flushed == [1]
    for backlog_bytes, busy in ((INLINE_BYTES_MAX + 1, False), (10, True)):
        turn.backlog_bytes, turn.busy = backlog_bytes, busy
        flusher.request()
        turn.end()
        loop.turn()
    assert flushed == [1, 2, 3]
    assert threads == [threading.current_thread().name, "log-flusher", "log-flusher"]
    flusher.close()


def test_a_slow_flush_sends_the_next_ones_to_the_thread() -> None:
    """And after a pause the loop tries again."""
    loop, turn, names = Loop(), Turn(), []

    def sync() -> int:
        turn.now_ns += INLINE_NS_MAX + 1 if not names else 0
        names.append(threading.current_thread().name)
        return len(names)

    flusher, flushed, _ = make_inline(loop, turn, sync)
    for flushes in range(1, SLOW_PAUSE_MIN + 3):
        flusher.request()
        turn.end()
        while not flushed or flushed[-1] < flushes:
            loop.turn()
    here = threading.current_thread().name
    assert names == [here, *["log-flusher"] * SLOW_PAUSE_MIN, here]
    flusher.close()


def test_a_failed_flush_on_the_loop_is_final() -> None:
    """Told once; nothing is flushed after it."""
    loop, turn, calls = Loop(), Turn(), []

    def sync() -> int:
        calls.append(1)
        raise OSError(5, "no")

    flusher, flushed, failed = make_inline(loop, turn, sync)
    flusher.request()
    turn.end()
    flusher.request()
    turn.end()
    assert len(failed) == len(calls) == 1
    assert not flushed
