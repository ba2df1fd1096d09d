"""Shared parts of the store's benchmarks: an open store whose loop is a queue of functions, messages, CPU clocks.

Nothing in the store is set for a benchmark unless its own text states it, and the garbage collector is set as the
broker sets it. Thread rule: the benchmark's thread is the store's loop thread.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from broker.store.log_store import LogStore
from broker.store.placed import Placed
from broker.store.settings import StoreSettings
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.record import MQTT_TOPIC_KEY
from runtime.clock import SystemClock
from runtime.faults import FaultPoints
from runtime.process import settle_garbage

MIB = 1024 * 1024
PARENTS, WILDCARDS = 4, 1_000
NAMES_AT_ONCE = 50_000
PROPERTIES = [(MQTT_TOPIC_KEY, b"plant/line/1/machine")]
LOOK_AGAIN_S = 0.0002


class StoreBench:
    """An open store with queues 0 to `queues` - 1; `turn` runs what its threads have scheduled."""

    def __init__(self, directory: Path, queues: int, **settings: Any) -> None:
        self.due: deque[Callable[[], None]] = deque()
        self.store = LogStore.open(
            directory, StoreSettings(**settings), clock=SystemClock(), faults=FaultPoints(),
            schedule=self.due.append, log=structlog.get_logger(),
        )  # fmt: skip
        for first in range(0, queues, NAMES_AT_ONCE):
            self.store.queues.open_all([b"q%d" % number for number in range(first, min(first + NAMES_AT_ONCE, queues))])
        self.settle()
        settle_garbage()

    def turn(self) -> None:
        """Run what is due."""
        due = self.due
        while due:
            due.popleft()()

    def settle(self) -> None:
        """Turn until everything is confirmed."""
        end = self.store.end_position
        while self.store.confirm_position < end:
            self.turn()
            time.sleep(LOOK_AGAIN_S)
        self.turn()


@contextmanager
def store_bench(queues: int, **settings: Any) -> Iterator[StoreBench]:
    """Open a store in a scratch folder below the current one (another file system than /tmp may be meant)."""
    directory = Path(tempfile.mkdtemp(prefix="store-bench-", dir="."))
    bench = StoreBench(directory, queues, **settings)
    try:
        yield bench
    finally:
        bench.store.close()
        shutil.rmtree(directory)


def messages(count: int, queues: int, seed: int, body: bytes) -> list[Placed]:
    """Messages for three queues each: 1 of 4 parents, 1 of up to 1,000 wildcard ones, 1 of all the others.

    They share their bytes, as meta and body were shared before there were images, so that figures stay comparable: what
    it takes to fetch them from memory (0.03 us for 240 bytes) is not in them.
    """
    wildcards = min(WILDCARDS, max(queues // 8, 1))
    lights = max(queues - PARENTS - wildcards, 1)
    image = encode_image(flags=9, born_ms=seed, topic=b"plant", properties=PROPERTIES, body=body)
    made = []
    for at in range(seed, seed + count):
        light = (PARENTS + wildcards + at * 7919 % lights) % queues
        spread = (at % PARENTS % queues, (PARENTS + at * 31 % wildcards) % queues, light)
        made.append(Placed(image, [tuple(dict.fromkeys(spread))]))
    return made


class Meter:
    """CPU of the process (all threads) and of this thread alone, between `start` and `stop`, round by round."""

    def __init__(self) -> None:
        self.process_us: list[float] = []
        self.loop_us: list[float] = []
        self._process_s = self._loop_s = 0.0

    def start(self) -> None:
        """Begin a round; objects made for it are exempt from garbage collection."""
        gc.collect()
        gc.freeze()
        self._loop_s, self._process_s = time.thread_time(), time.process_time()

    def stop(self, count: int) -> None:
        """End a round of `count` messages."""
        process_s, loop_s = time.process_time(), time.thread_time()
        self.process_us.append((process_s - self._process_s) / count * 1e6)
        self.loop_us.append((loop_s - self._loop_s) / count * 1e6)
        gc.unfreeze()


def best_and_median(costs: list[float]) -> str:
    """Both, in microseconds."""
    return f"{min(costs):.2f} / {statistics.median(costs):.2f}"
