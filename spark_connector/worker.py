"""What a Python worker process of Spark needs once, whatever it reads or writes.

`pyspark.daemon` runs a full garbage collection after every task, which costs 30 ms with pyarrow and numpy loaded;
frozen objects are skipped. Freezing waits for the second task, when everything that stays has been imported.
Invariant: frozen at most once per process. Thread rule: called at the beginning of a task.

The wall clock of a task: the one place where the connector reads what time it is.

It is the publisher's clock, as `born_ms` asks for; the broker adds its own store time. Pauses and deadlines use the
monotonic clock where they are. Thread rule: any thread.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

from remoting import clock

_tasks_by_process: dict[int, int] = {}


def begin_task() -> None:
    """Note that a task begins in this process; the second one freezes what is loaded."""
    process = os.getpid()
    _tasks_by_process[process] = _tasks_by_process.get(process, 0) + 1
    if _tasks_by_process[process] == 2:
        gc.freeze()


Clock = Callable[[], int]
"""Returns milliseconds since 1970."""


def wall_ms() -> int:
    """Return milliseconds since 1970."""
    return clock.now_ms()
