"""CPU per message of replication inside the store: reading the log as bytes, taking it over, and changing roles.

A master has 100-byte messages in three queues each; a replica takes the parts over, flushes and confirms them. `raw`
and `append_raw` are the time of the loop's thread alone; after that both are closed cleanly and opened in the other
role. Nothing here is gated on time.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from benchmarks.stores import MIB, messages
from broker.store.append.raw_part import RawPart
from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from remoting.native import core as native
from runtime.clock import SystemClock
from runtime.faults import FaultPoints

QUEUES = 1_000
BATCH = 128
TURN_PARTS = 8


class Node:
    """A store in a role, whose loop is a queue of functions."""

    def __init__(self, directory: Path, **role: Any) -> None:
        self.due: deque[Callable[[], None]] = deque()
        self._directory = directory
        self.store = self.open(**role)

    def open(self, **role: Any) -> LogStore:
        """Open the directory in a role."""
        self.store = LogStore.open(
            self._directory, StoreSettings(segment_size_bytes=256 * MIB), clock=SystemClock(), faults=FaultPoints(),
            schedule=self.due.append, log=structlog.get_logger(), **role,
        )  # fmt: skip
        return self.store

    def turn(self, limit: int | None = None) -> None:
        """Run what is due, then confirm up to `limit`."""
        while self.due:
            self.due.popleft()()
        if limit is not None:
            self.store.positions.limit_confirm(limit)

    def change_role(self, **role: Any) -> tuple[float, float]:
        """Close and open; return how many ms each took by the clock on the wall."""
        begun = time.perf_counter()
        self.store.close()
        closed = time.perf_counter()
        self.turn()
        self.open(**role)
        return 1000 * (closed - begun), 1000 * (time.perf_counter() - closed)


def filled(directory: Path, total: int) -> Node:
    """Return a master with `total` confirmed messages."""
    node = Node(directory, epoch=1)
    node.store.queues.open_all([b"q%d" % number for number in range(QUEUES)])
    for at in range(0, total, BATCH):
        node.store.append(*messages(BATCH, QUEUES, at, bytes(100)))
        node.turn(node.store.end_position)
    return node


def read_parts(store: LogStore, bytes_max: int) -> tuple[list[RawPart], int]:
    """Return the whole log in parts, and the ns of this thread that took."""
    parts, position, begun = [], 0, time.thread_time_ns()
    while (part := store.replica.raw(position, bytes_max)) is not None:
        parts.append(part)
        position = part.end
    return parts, time.thread_time_ns() - begun


def main() -> None:
    """Print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--part-bytes", type=int, default=256 * 1024)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="store-replica-", dir="."))
    try:
        master, replica = filled(folder / "master", options.messages), Node(folder / "replica", role="replica")
        parts, raw_ns = read_parts(master.store, options.part_bytes)
        received = [replace(part, data=memoryview(bytes(part.data))) for part in parts]
        end, begun_ns, begun = master.store.end_position, time.thread_time_ns(), time.perf_counter()
        for number, part in enumerate(received):
            replica.store.replica.append_raw(part)
            if number % TURN_PARTS == 0:
                replica.turn(end)
        took_ns, wall_s = time.thread_time_ns() - begun_ns, time.perf_counter() - begun
        total = options.messages
        print(f"twin {native.choice.name}, {total} messages, {end / total:.0f} bytes each, {len(parts)} parts")
        print(f"raw         {raw_ns / total:7.1f} ns/message on the loop's thread")
        print(f"append_raw  {took_ns / total:7.1f} ns/message on the loop's thread, {total / wall_s / 1e6:.2f} M/s")
        while replica.store.positions.flushed < end:
            replica.turn(end)
            time.sleep(0.001)
        for name, node, role in (
            ("master to replica", master, {"role": "replica"}),
            ("replica to master", replica, {"epoch": 2}),
        ):
            close_ms, open_ms = node.change_role(**role)
            print(f"{name}: close {close_ms:.0f} ms, open {open_ms:.0f} ms")
            node.turn(end)
            node.store.close()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
