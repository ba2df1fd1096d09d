"""Group commit, the confirm position and the callbacks that wait for it."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace

import structlog
from hypothesis import given
from hypothesis import strategies as st

from broker.store.log.confirm import INLINE_BYTES_MAX, INLINE_NS_MAX, NEVER, SLOW_PAUSE_MIN, Confirm, Flusher, Inline
from remoting.native import core as native
from remoting.native.contracts import CONFIRMED
from tests.sim.batches import Bench
from tests.support.images import placed


def entries(queues: list[int], offsets: list[int]):
    zeros = [0] * len(queues)
    return native.core.make_block(queues, offsets, zeros, zeros, zeros, [1] * len(queues))


def group(end: int, block):
    """An append whose bytes were not kept."""
    return SimpleNamespace(end_position=end, entries=block, pieces=[])


class Rows:
    """The tail, as far as confirming goes."""

    def __init__(self) -> None:
        self.bench = Bench(native.core)
        self.ring = self.bench.ring


def make() -> Confirm:
    return Confirm(0, Rows(), structlog.get_logger())


def ends(confirm: Confirm) -> list[int]:
    """Confirmed ends of the first two queues."""
    return confirm._tail.bench.word(CONFIRMED)[:2].tolist()


def test_moves_to_group_ends_only() -> None:
    """A durable position inside a group confirms only the groups before it."""
    confirm = make()
    confirm.add_group(group(100, entries([0], [0])))
    confirm.add_group(group(300, entries([0, 1], [1, 0])))
    confirm.advance(299)
    assert (confirm.position, ends(confirm)) == (100, [1, 0])
    confirm.advance(300)
    assert (confirm.position, ends(confirm)) == (300, [2, 1])


def test_fresh_batches_are_handed_on_when_they_are_confirmed() -> None:
    """Before the listeners of the same move; batches that were not kept are left out."""
    confirm, heard = make(), []
    confirm.on_advance(lambda queues: heard.append(list(queues)))
    confirm.on_fresh(lambda batches: heard.append([batch.end_position for batch in batches]))
    batch = Bench(native.core).encode([placed((0,))])
    confirm.add_group(batch)
    confirm.add_group(group(200, entries([1], [0])))
    confirm.advance(50)
    assert heard == []
    confirm.advance(200)
    assert heard == [[batch.end_position], [0, 1]]


def test_a_failure_reaches_all_callbacks_in_order() -> None:
    """Waiting callbacks get the error by position; later ones too; confirmed ones do not."""
    confirm, heard = make(), []
    confirm.add_group(group(100, entries([], [])))
    confirm.add_group(group(200, entries([], [])))
    confirm.when_confirmed(200, lambda error: heard.append((200, error)))
    confirm.when_confirmed(150, lambda error: heard.append((150, error)))
    confirm.advance(100)
    failure = RuntimeError("disk")
    confirm.fail(failure)
    confirm.when_confirmed(300, lambda error: heard.append((300, error)))
    confirm.when_confirmed(100, lambda error: heard.append((100, error)))
    assert heard == [(150, failure), (200, failure), (300, failure), (100, None)]


def test_a_callback_that_raises_affects_no_other() -> None:
    """One handler's bug leaves the other callbacks and listeners alone."""
    confirm, heard = make(), []

    def broken(*_: object) -> None:
        raise ValueError("bug")

    confirm.on_advance(broken)
    confirm.on_advance(heard.append)
    confirm.add_group(group(10, entries([2], [0])))
    confirm.when_confirmed(10, broken)
    confirm.when_confirmed(10, heard.append)
    confirm.advance(10)
    assert heard == [None, [2]]


def test_a_callback_for_the_failure_is_called_for_nothing_else() -> None:
    """A position that is never reached delays no other callback, and its own is called last, once."""
    confirm, heard = make(), []
    confirm.when_confirmed(NEVER, lambda error: heard.append(("never", error)))
    confirm.add_group(group(10, entries([0], [0])))
    confirm.when_confirmed(10, lambda error: heard.append((10, error)))
    confirm.advance(10)
    assert heard == [(10, None)]
    confirm.when_confirmed(20, lambda error: heard.append((20, error)))
    failure = ValueError("the disk")
    confirm.fail(failure)
    confirm.fail(failure)
    confirm.when_confirmed(NEVER, lambda error: heard.append(("late", error)))
    assert heard == [(10, None), (20, failure), ("never", failure), ("late", failure)]


def test_a_listener_is_called_while_it_has_members() -> None:
    """A listener that waits for nothing is not called at every move."""
    confirm, heard, waiting = make(), [], set()
    confirm.on_advance(heard.append, waiting)
    confirm.add_group(group(10, entries([2], [0])))
    confirm.advance(10)
    assert heard == []
    waiting.add("somebody")
    confirm.add_group(group(20, entries([2], [1])))
    confirm.advance(20)
    assert heard == [[2]]


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=30), st.lists(st.integers(0, 900), max_size=30))
def test_callbacks_fire_once_and_never_early(steps, wanted) -> None:
    """Against the definition: fired exactly when the confirm position has passed."""
    confirm, fired, end = make(), [], 0
    for position in wanted:
        confirm.when_confirmed(position, lambda _, position=position: fired.append(position))
    for size, flush in steps:
        end += size
        confirm.add_group(group(end, entries([], [])))
        if flush:
            confirm.advance(end)
        assert sorted(fired) == sorted(position for position in wanted if position <= confirm.position)


class Loop:
    """A loop thread made of a queue."""

    def __init__(self) -> None:
        self.due: queue.SimpleQueue = queue.SimpleQueue()

    def turn(self) -> None:
        self.due.get(timeout=10)()


def started(loop: Loop, sync, interval_ms: int = 0):
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

    flusher, flushed, _ = started(loop, sync)
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
    flusher, flushed, _ = started(loop, lambda: 77, interval_ms=3_600_000)
    flusher.request()
    flusher.close()
    assert flushed == [77]


def test_failure_is_reported_once_and_ends_the_thread() -> None:
    """After the first failed flush there is no second try."""
    loop, calls = Loop(), []

    def sync() -> int:
        calls.append(1)
        raise OSError(5, "gone")

    flusher, flushed, failed = started(loop, sync)
    flusher.request()
    loop.turn()
    flusher.request()
    flusher.close()
    assert (len(calls), flushed, [error.errno for error in failed]) == (1, [], [5])


class Turn:
    """The end of a loop's turn, a clock that the test moves, and a backlog."""

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


def test_little_is_flushed_at_the_end_of_the_turn() -> None:
    """Once for all requests of the turn, on the loop's own thread; much, or a busy disk, is left to the thread."""
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
    """Reported once; nothing is flushed after it."""
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
