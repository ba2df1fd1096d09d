"""Jobs in order, results on the loop thread, errors handed over."""

from __future__ import annotations

import queue
import threading

from broker.store.log.index_thread import IndexThread


def test_results_come_in_order_on_the_loop_thread() -> None:
    """Each job's result or error reaches its own `done`."""
    due: queue.SimpleQueue = queue.SimpleQueue()
    thread, heard = IndexThread(due.put), []

    def broken() -> None:
        raise ValueError("bad")

    thread.submit(lambda: 1, lambda *got: heard.append((threading.current_thread(), *got)))
    thread.submit(broken, lambda _, error: heard.append(error))
    while len(heard) < 2:
        due.get(timeout=10)()
    assert heard[0] == (threading.main_thread(), 1, None)
    assert isinstance(heard[1], ValueError)
    thread.close()


def test_drain_delivers_the_results_of_follow_up_jobs() -> None:
    """Draining also waits for jobs that results start; the scheduled deliveries find nothing left."""
    due: queue.SimpleQueue = queue.SimpleQueue()
    thread, heard = IndexThread(due.put), []
    thread.submit(lambda: 1, lambda *_: thread.submit(lambda: 2, lambda result, _: heard.append(result)))
    thread.drain()
    assert (heard, thread.pending) == ([2], 0)
    while not due.empty():
        due.get()()
    thread.close()


def test_an_abandoned_thread_finishes_only_the_job_under_way() -> None:
    """When the call returns nothing of it runs any more, and no result is told."""
    due: queue.SimpleQueue = queue.SimpleQueue()
    thread, ran, heard = IndexThread(due.put), [], []
    begun, may_end = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        may_end.wait(10)
        ran.append("first")

    thread.submit(first, lambda *got: heard.append(got))
    thread.submit(lambda: ran.append("second"), lambda *got: heard.append(got))
    begun.wait(10)
    ending = threading.Thread(target=thread.abandon)
    ending.start()
    while ending.is_alive() and thread._jobs.qsize() > 1:  # what waits is dropped first
        pass
    may_end.set()
    ending.join(10)
    assert (ran, heard, due.empty(), ending.is_alive()) == (["first"], [], True, False)
