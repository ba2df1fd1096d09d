"""How long the loop is blocked by maintenance of the state of a large broker.

A million queues, sessions, group offsets and retained messages. A loop appends small batches and turns, and its longest
wait is printed: undisturbed, while a snapshot is written, and while the oldest log files are removed and the state in
them is appended again.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from benchmarks.stores import MIB, StoreBench, messages
from broker.store.placed import Placed
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN, MQTT_TOPIC_KEY

BATCH = 16
CHANGES_AT_ONCE = 10_000
GROUPS = 100
MAINTAIN_S = 0.02


def retained(number: int) -> Placed:
    """A retained message of its own MQTT topic."""
    topic = b"plant/machine-%d" % number
    properties = [(MQTT_TOPIC_KEY, topic)]
    flags = FLAG_MQTT | FLAG_RETAIN
    image = encode_image(flags=flags, born_ms=5, topic=b"plant", properties=properties, body=bytes(20))
    return Placed(image, [(number % 4,)])


def fill(bench: StoreBench, entries: int) -> None:
    """Append as many sessions, group offsets and retained messages."""
    for kind, size in ((state_kinds.SESSION, 200), (state_kinds.GROUP_OFFSET, 8)):
        for first in range(0, entries, CHANGES_AT_ONCE):
            numbers = range(first, min(first + CHANGES_AT_ONCE, entries))
            bench.store.append_state(
                [StateChange(kind, b"%d\x00key-%d" % (number % GROUPS, number), bytes(size)) for number in numbers]
            )
    for first in range(0, entries, 1_000):
        bench.store.append(*[retained(number) for number in range(first, min(first + 1_000, entries))])
    bench.settle()


class Loop:
    """Small appends, and the longest time one of them with its turn took."""

    def __init__(self, bench: StoreBench, queues: int) -> None:
        self._bench = bench
        self._batch = messages(BATCH, queues, 0, bytes(100))

    def run(self, done: Callable[[], bool], *, maintain: bool = False) -> tuple[float, float, int]:
        """Step until `done`; return (longest step, seconds, steps). With `maintain`, upkeep as the broker does it."""
        begun = before = upkeep = time.perf_counter()
        longest, steps = 0.0, 0
        while not done():
            self._bench.store.append(*self._batch)
            self._bench.turn()
            if maintain and before - upkeep > MAINTAIN_S:
                upkeep = before
                self._bench.store.maintain(int(time.time() * 1000))
            now = time.perf_counter()
            longest, before, steps = max(longest, now - before), now, steps + 1
            time.sleep(0.0005)  # the loop of a broker also waits, which lets the other threads run
            before = time.perf_counter()
        return longest, time.perf_counter() - begun, steps


def report(what: str, result: tuple[float, float, int]) -> None:
    """One line."""
    longest, seconds, steps = result
    print(f"{what}: longest step {1e3 * longest:.1f} ms of {steps} in {seconds:.1f} s", flush=True)


def snapshot_pause(bench: StoreBench, loop: Loop) -> None:
    """The loop beside a snapshot."""
    for _ in range(2):
        begun = time.perf_counter()
        parts = bench.store._parts  # noqa: SLF001
        parts.snapshots.take()
        started = time.perf_counter() - begun
        report("snapshot", loop.run(lambda: not parts.jobs.running("snapshot")))  # noqa: B023
        print(f"  of it taking the copy: {1e3 * started:.1f} ms")


def retention_pause(bench: StoreBench, loop: Loop) -> None:
    """The loop during the removal of the oldest log files, which have nearly all state."""
    begin, retention = bench.store.begin_position, bench.store.retention
    bench.store.maintain(int(time.time() * 1000))
    target = retention._target  # noqa: SLF001
    assert target is not None
    report("retention", loop.run(lambda: bench.store.begin_position >= target, maintain=True))
    removed = bench.store.begin_position - begin
    print(f"  {removed / MIB:.0f} MiB of log removed, {retention.carried.total} entries appended again")


def main() -> None:
    """Run and print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queues", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=200_000)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="state-pause-", dir="."))
    bench = StoreBench(
        directory, options.queues, segment_size_bytes=64 * MIB, retention_ms=1000, snapshot_log_bytes=1 << 40
    )
    try:
        fill(bench, options.entries)
        loop = Loop(bench, options.queues)
        end = time.perf_counter() + 3
        report("undisturbed", loop.run(lambda: time.perf_counter() > end))
        snapshot_pause(bench, loop)
        retention_pause(bench, loop)
    finally:
        bench.store.close()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
