"""Whether consuming keeps up with producing at full rate: one store, one loop, and the cost of each side per message.

Every turn appends a batch, runs what is due, and lets a consumer pull (32 records at a time, put together into one
answer) from every queue whose confirmed end has moved, as far as it is confirmed. Nothing ever waits for an index: the
append that stores a message has dispatched it. Lag is what is stored and not yet handed out, in messages; with flush
"sync" most of it waits for fdatasync. Each message goes to one of the consumed queues and to two of 100,000 others.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from benchmarks.stores import PROPERTIES, StoreBench, store_bench
from broker.store.placed import Placed
from remoting.native import core as native
from remoting.protocol.records.image import encode_image

CONSUMED = (1, 16, 10_000)
OTHERS = 100_000
BATCH = 128
PULL = 32
PULL_BYTES_MAX = 1 << 20
BODY = bytes(100)


class Consumer:
    """Pulls from the queues that have grown."""

    def __init__(self, bench: StoreBench, queues: int) -> None:
        self._store = bench.store
        self._next = [0] * queues
        self._grown: dict[int, None] = {}
        self.handed_out = 0
        self.bytes_out = 0
        bench.store.positions.on_advance(self._advanced)

    def _advanced(self, queue_ids: Sequence[int]) -> None:
        limit = len(self._next)
        self._grown.update(dict.fromkeys([queue for queue in queue_ids if queue < limit]))

    def pull(self) -> None:
        """Hand out everything confirmed."""
        grown, self._grown = self._grown, {}
        for queue in grown:
            at = self._next[queue]
            while True:
                found = self._store.reading.read(queue, at, PULL, PULL_BYTES_MAX)
                at = found.next_offset
                self.handed_out += len(found.records)
                self.bytes_out += len(b"".join(found.records))
                if at >= found.max_offset:
                    break
            self._next[queue] = at


def messages(first: int, queues: int) -> list[Placed]:
    """One batch."""
    made = []
    for at in range(first, first + BATCH):
        others = queues + at * 7919 % OTHERS, queues + (at * 104_729 + 1) % OTHERS
        made.append(
            Placed(
                encode_image(flags=9, born_ms=at, topic=b"plant", properties=PROPERTIES, body=BODY),
                [(at % queues, *others)],
            )
        )
    return made


def measure(queues: int, flush: str, total: int) -> None:
    """Print one line."""
    with store_bench(queues + OTHERS, flush=flush) as bench:
        consumer, store = Consumer(bench, queues), bench.store
        producing_s = consuming_s = 0.0
        lag_max = stored = 0
        process_s, making_s, begun = time.process_time(), 0.0, time.monotonic()
        for first in range(0, total, BATCH):
            started_s = time.thread_time()
            batch = messages(first, queues)
            made_s = time.thread_time()
            store.append(*batch)
            bench.turn()
            appended_s = time.thread_time()
            stored += BATCH
            lag_max = max(lag_max, stored - consumer.handed_out)
            consumer.pull()
            making_s += made_s - started_s
            producing_s += appended_s - made_s
            consuming_s += time.thread_time() - appended_s
        lag_end = stored - consumer.handed_out
        wall_s, process_s = time.monotonic() - begun - making_s, time.process_time() - process_s - making_s
        bench.settle()
        consumer.pull()
        assert consumer.handed_out == stored, (consumer.handed_out, stored)
        runs = store.metrics()["index_runs_written_total"]
    print(
        f"{queues:>7} {flush:<6} produce {producing_s / total * 1e6:5.2f}  consume {consuming_s / total * 1e6:5.2f}  "
        f"all threads {process_s / total * 1e6:5.2f} us/msg   {total / wall_s / 1e3:5.0f} k/s both   "
        f"lag max {lag_max:>6} end {lag_end:>6}   {runs} runs",
        flush=True,
    )


def main() -> None:
    """One line per number of consumed queues and flush mode."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, nargs="*", default=CONSUMED)
    parser.add_argument("--flush", nargs="*", choices=["async", "sync"], default=["async", "sync"])
    options = parser.parse_args()
    print(f"{native.core.name} core; batches of {BATCH}, pulls of {PULL}; rates are of this thread's wall time")
    for flush in options.flush:
        for queues in options.queues:
            measure(queues, flush, options.messages // BATCH * BATCH)


if __name__ == "__main__":
    main()
