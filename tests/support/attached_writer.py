"""A process that writes a store as fast as it can, for tests that read the directory from outside.

    python -m tests.support.attached_writer DIRECTORY OPTIONS

OPTIONS is the JSON of `Orders`. Message n has offset n in the parent queue, whatever restarts lie before it, and its
body begins with {n u64, when it was appended, in ns of the monotonic clock, u64}. It says `{"parent": id, "lights":
[...], "next": n}` once and `{"done": n}` at its end, if it has one.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from runtime.clock import SystemClock
from runtime.faults import FaultPoints
from tests.support.images import placed

BODY = struct.Struct("<QQ")
LIGHTS = 7
META = b"plant"


class Orders(msgspec.Struct, kw_only=True):
    """What to do."""

    settings: dict[str, Any] = {}
    batch: int = 100
    body_size: int = 100
    stop_at: int = 0
    """Offset of the parent queue to stop at; 0: never."""
    new_queues_each: int = 0
    """After so many batches another 4,096 queues are made, so that the tail's rows grow; 0: never."""
    pause_s: float = 0.0
    """After every batch."""


class Writer:
    """One life."""

    def __init__(self, directory: Path, orders: Orders) -> None:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
        self._due: deque[Callable[[], None]] = deque()
        self._orders = orders
        self._store = LogStore.open(
            directory, StoreSettings(**orders.settings), clock=SystemClock(), faults=FaultPoints(),
            schedule=self._due.append, log=structlog.get_logger(),
        )  # fmt: skip
        names = [b"parent", *(b"light%d" % number for number in range(LIGHTS))]
        self._parent, *self._lights = self._store.queues.open_all(names)
        self._next = self._store.reading.next_offset(self._parent)
        self._made = 0

    def run(self) -> None:
        """Report where it begins, then write."""
        say({"parent": self._parent, "lights": self._lights, "next": self._next})
        orders, batches = self._orders, 0
        while not orders.stop_at or self._next < orders.stop_at:
            self._append()
            self._turn()
            batches += 1
            if batches % 16 == 0:
                self._store.maintain(int(time.time() * 1000))
            if orders.new_queues_each and batches % orders.new_queues_each == 0:
                self._store.queues.open_all([b"more%d" % number for number in range(self._made, self._made + 4096)])
                self._made += 4096
            if orders.pause_s:
                time.sleep(orders.pause_s)
        while self._store.confirm_position < self._store.end_position or self._too_long():
            self._store.maintain(int(time.time() * 1000))
            time.sleep(0.001)
            self._turn()
        self._store.close()
        self._turn()
        say({"done": self._next})

    def _too_long(self) -> bool:
        """Whether retention has more to remove; the last segment always stays."""
        kept = self._store.end_position - self._store.begin_position
        allowed = int(self._orders.settings.get("retention_size_bytes", 0))
        return 0 < allowed < kept - int(self._orders.settings["segment_size_bytes"])

    def _append(self) -> None:
        padding = bytes(self._orders.body_size - BODY.size)
        now_ns = time.monotonic_ns()
        messages = [
            placed(
                (self._parent, self._lights[number % LIGHTS]), BODY.pack(number, now_ns) + padding, topic=META,
            )
            for number in range(self._next, self._next + self._orders.batch)
        ]  # fmt: skip
        self._store.append(*messages)
        self._next += len(messages)

    def _turn(self) -> None:
        while self._due:
            self._due.popleft()()


def say(words: dict[str, Any]) -> None:
    """One line for the parent process."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    Writer(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Orders)).run()
