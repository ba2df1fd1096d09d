"""CPU of reading 32 entries of one queue among a million: deep in the index tail, and over many runs, on both twins.

Per case two figures, each the best of some rounds of reads from random places: `index` is the look-up alone, `read` is
`LogStore.read`, records, checksums and views included. A message is in 1 of 4 parent queues, 1 of 1,000 wildcard
queues, and 1 of the others: nine in ten of a million cold ones, one in ten of 5,000 scattered ones, whose entries lie
in every run. The tail cases hold 262,144 and 1,048,576 live entries and no run; the run cases some 20 runs of three
levels and an empty tail.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.stores import LOOK_AGAIN_S, MIB, PROPERTIES, StoreBench, store_bench
from broker.store.placed import Placed
from remoting.native import core as native
from remoting.protocol.records.image import encode_image
from runtime.process import settle_garbage

WANTED = 32
ROUNDS = 7
READS = 400
PARENTS, WILDCARDS, SCATTERED = 4, 1_000, 5_000
FIRST_COLD = PARENTS + WILDCARDS + SCATTERED
TAILS = (262_144, 1_048_576)
RUN_ENTRIES = 18_432
RUNS_TOTAL = 511
CASES = {
    "hot, 1 of 4": range(PARENTS),
    "1 of 1,000": range(PARENTS, PARENTS + WILDCARDS),
    "1 of 50,000": range(PARENTS + WILDCARDS, FIRST_COLD),
    "cold": range(FIRST_COLD, FIRST_COLD + 100_000),
}


def messages(count: int, seed: int, queues: int) -> list[Placed]:
    """Messages for three queues each."""
    colds, body = queues - FIRST_COLD, b"21.5"
    made = []
    for at in range(seed, seed + count):
        own = PARENTS + WILDCARDS + at // 10 * 7 % SCATTERED if at % 10 == 0 else FIRST_COLD + at * 7919 % colds
        spread = (at % PARENTS, PARENTS + at * 31 % WILDCARDS, own)
        made.append(
            Placed(encode_image(flags=9, born_ms=at, topic=b"plant", properties=PROPERTIES, body=body), [spread])
        )
    return made


def fill(bench: StoreBench, entries: int, queues: int) -> None:
    """Append so many index entries."""
    total, flusher = entries // 3, bench.store._parts.index_flusher  # noqa: SLF001
    for first in range(0, total, 1024):
        bench.store.append(*messages(min(1024, total - first), first, queues))
        bench.turn()
        while flusher.busy:  # so that all runs have their usual sizes
            bench.turn()
            time.sleep(LOOK_AGAIN_S)
    bench.settle()


@contextmanager
def tail_bench(entries: int, queues: int) -> Iterator[StoreBench]:
    """A store with so many entries in its tail, all live."""
    tail = {"index_tail_entries": 4 * entries, "index_flush_entries": 2 * entries}
    with store_bench(queues, segment_size_bytes=256 * MIB, flush="async", **tail) as bench:
        fill(bench, entries, queues)
        settle_garbage()
        yield bench


@contextmanager
def runs_bench(queues: int) -> Iterator[StoreBench]:
    """A store whose entries are in runs of three levels."""
    tail = {"index_tail_entries": 2 * RUN_ENTRIES, "index_flush_entries": RUN_ENTRIES}
    with store_bench(queues, segment_size_bytes=256 * MIB, flush="async", **tail) as bench:
        fill(bench, RUNS_TOTAL * RUN_ENTRIES, queues)
        settle_garbage()
        yield bench


def best_us(read: Callable[[int, int], object], places: list[tuple[int, int]]) -> float:
    """CPU per read, the best round."""
    costs = []
    for first in range(0, len(places), READS):
        some = places[first : first + READS]
        begun = time.process_time()
        for queue, offset in some:
            read(queue, offset)
        costs.append((time.process_time() - begun) / len(some) * 1e6)
    return min(costs)


def row(bench: StoreBench) -> str:
    """The cells of one line: index / read per case."""
    store, draw = bench.store, random.Random(7)
    index = store._parts.opened.index  # noqa: SLF001
    cells = []
    for queues in CASES.values():
        places = []
        for _ in range(ROUNDS * READS):
            queue = draw.choice(queues)
            low, high = store.reading.bounds(queue)
            places.append((queue, draw.randrange(low, max(low + 1, low + (high - low) * 3 // 4))))
        look_up = best_us(lambda queue, offset: index.read(queue, offset, WANTED), places)
        read = best_us(lambda queue, offset: store.reading.read(queue, offset, WANTED, MIB), places)
        cells.append(f"{look_up:>8.1f} / {read:<6.1f}")
    return "".join(cells)


def main() -> None:
    """Run the table for each twin."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queues", type=int, default=1_000_000)
    parser.add_argument("--twin", choices=["both", "compiled", "pure"], default="both")
    parser.add_argument("--where", choices=["all", "tail", "runs"], default="all")
    options = parser.parse_args()
    twins = [native.pure_core()] if native.choice.name == "pure" else [native.compiled_core(), native.pure_core()]
    print(f"CPU us per read of {WANTED} entries, index / with records; best of {ROUNDS} rounds of {READS}")
    print(f"{'':<34}" + "".join(f"{name:^17}" for name in CASES))
    for twin in twins:
        if options.twin not in {"both", twin.name}:
            continue
        native.core = twin
        for entries in TAILS if options.where != "runs" else ():
            with tail_bench(entries, options.queues) as bench:
                print(f"{twin.name:<9} tail of {entries:>9,} entries " + row(bench), flush=True)
        if options.where != "tail":
            with runs_bench(options.queues) as bench:
                runs = bench.store.metrics()["index_runs"]
                print(f"{twin.name:<9} {runs:>2} runs, {RUNS_TOTAL * RUN_ENTRIES:>9,} entries" + row(bench), flush=True)


if __name__ == "__main__":
    main()
