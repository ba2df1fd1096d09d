"""CPU per message of the store over many millions of messages: appends, index runs, merges, fdatasync, retention.

Batches of 1,000 messages into three queues each, out of a million. CPU is process time of all threads from the first
append to the end of the last index job, less what this thread needed to make the messages. With `--keep-mib` (the
default) the oldest log files expire during the run, after the upkeep has appended again the state that only they had:
with a million queues that takes longer than the run. 0 keeps everything. Maintenance runs as often as a broker calls
it.
"""

from __future__ import annotations

import argparse
import statistics
import time

from benchmarks.stores import MIB, StoreBench, messages, store_bench
from remoting.native import core as native

BATCH = 1_000
PART = 1_000_000
MAINTAIN_S = 1.0


class Run:
    """The appending of many messages, part by part."""

    def __init__(self, bench: StoreBench, queues: int) -> None:
        self.bench = bench
        self.queues = queues
        self.making_s = 0.0
        self.appending_s = 0.0
        self.maintained = 0.0
        self.body = bytes(100)

    def part(self, first: int, count: int) -> None:
        """Append messages [first, first + count), maintaining the store about once a second."""
        store, turn = self.bench.store, self.bench.turn
        for at in range(first, first + count, BATCH):
            begun = time.thread_time()
            batch = messages(BATCH, self.queues, at, self.body)
            made = time.thread_time()
            store.append(*batch)
            turn()
            now = time.monotonic()
            if now - self.maintained >= MAINTAIN_S:
                self.maintained = now
                store.maintain(time.time_ns() // 1_000_000)
            self.making_s += made - begun
            self.appending_s += time.thread_time() - made


def main() -> None:
    """Print a line per million messages, then the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--queues", type=int, default=1_000_000)
    parser.add_argument("--flush", choices=["sync", "async"], default="sync")
    parser.add_argument("--keep-mib", type=int, default=1024, help="size the log is kept at; 0: everything")
    options = parser.parse_args()
    settings = {"flush": options.flush, "retention_ms": 0, "retention_size_bytes": options.keep_mib * MIB}
    print(f"{native.core.name} core, flush={options.flush}, {options.queues} queues, batches of {BATCH}")
    with store_bench(options.queues, **settings) as bench:
        run, parts = Run(bench, options.queues), []
        process_s, wall_s = time.process_time(), time.monotonic()
        for first in range(0, options.messages, PART):
            begun, making_s, count = time.process_time(), run.making_s, min(PART, options.messages - first)
            run.part(first, count)
            parts.append((time.process_time() - begun - (run.making_s - making_s)) / count * 1e6)
            print(f"  {(first + PART) // PART:>3} M  {parts[-1]:.2f} us/msg", flush=True)
        bench.settle()
        wall_s = time.monotonic() - wall_s
        cpu_s = time.process_time() - process_s - run.making_s
        seen = bench.store.metrics()
    count = options.messages
    print(
        f"CPU {cpu_s / count * 1e6:.2f} us/msg ({count / cpu_s / 1e6:.2f} M msg/s and core), best million "
        f"{min(parts):.2f}, median {statistics.median(parts):.2f}; "
        f"appending thread {run.appending_s / count * 1e6:.2f}\n"
        f"wall {wall_s:.1f} s, of which {run.making_s:.1f} s made the messages; {seen['flushes_total']} flushes, "
        f"{seen['index_runs_written_total']} runs, {seen['index_merges_total']} merges, "
        f"{seen['segments_expired_bytes_total'] // MIB} MiB expired, {seen['end_position'] // MIB} MiB written"
    )


if __name__ == "__main__":
    main()
