"""The flusher's thread: each request is flushed, the last one at the close; a failed flush is the last."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

from broker.store.log.flush_thread import FlushThread
from broker.store.log.index_thread import IndexThread, Workers
from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from runtime.faults import FaultPoints
from tests.sim.stores import SMALL, Silent
from tests.support.clock import ManualClock


def test_a_request_during_a_flush_is_another_flush() -> None:
    """It may have come after what the present one covers; the close is a flush too."""
    begun: queue.SimpleQueue[str] = queue.SimpleQueue()
    go = threading.Semaphore(0)

    def flush() -> bool:
        begun.put(threading.current_thread().name)
        return go.acquire(timeout=10)

    thread = FlushThread(flush, 0)
    thread.want()
    assert begun.get(timeout=10) == "log-flusher"
    thread.want()
    go.release()
    begun.get(timeout=10)
    go.release(2)
    thread.close()
    assert begun.get(timeout=10)
    assert begun.empty()


def test_nothing_is_flushed_after_a_failure() -> None:
    """A second one might succeed although the data is lost."""
    flushed: list[int] = []
    failed = threading.Event()

    def flush() -> bool:
        flushed.append(1)
        failed.set()
        return False

    thread = FlushThread(flush, 0)
    thread.want()
    assert failed.wait(10)
    thread.close()
    assert flushed == [1]


def test_an_interval_lies_between_a_request_and_its_flush() -> None:
    """The close does not wait for it."""
    flushed: list[int] = []

    def flush() -> bool:
        flushed.append(1)
        return True

    thread = FlushThread(flush, 3_600)
    thread.want()
    thread.close()
    assert 1 <= len(flushed) <= 2


class Counted(IndexThread):
    """A thread that counts its jobs."""

    def __init__(self, schedule) -> None:
        self.jobs = 0
        super().__init__(schedule)

    def submit(self, job, done) -> None:
        self.jobs += 1
        super().submit(job, done)


def test_a_store_works_with_the_workers_that_it_is_given(tmp_path: Path) -> None:
    """A caller that is a simulation has the slow work done when it wants it."""
    made: list = []

    def flusher(flush, seconds: float) -> FlushThread:
        made.append(FlushThread(flush, seconds))
        return made[-1]

    def jobs(schedule) -> Counted:
        made.append(Counted(schedule))
        return made[-1]

    store = LogStore.open(
        tmp_path / "data", StoreSettings(**SMALL), clock=ManualClock(), faults=FaultPoints(),
        schedule=lambda function: None, log=Silent(), workers=Workers(flusher, jobs),
    )  # fmt: skip
    store.queues.open(b"q")
    store.close()
    (counted,) = [each for each in made if isinstance(each, Counted)]
    assert (len(made), counted.jobs > 0) == (2, True)
    assert store.positions.flushed == store.end_position
