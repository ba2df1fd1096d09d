"""CPU per message of `LogStore.append` on both twins: batches of 1 to 1024 messages into 3 queues each, to 1M queues.

Two figures per case, each the best and the median of the rounds: `all` is process time of all threads (appending,
confirming after every append, flushing, writing index runs and merging them), `loop` is the time of the appending
thread alone. Messages are made just before each round, outside the figures. With `--flush sync` fdatasync runs beside
it and is part of `all`. Nothing here is gated on time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.stores import MIB, Meter, StoreBench, best_and_median, messages, store_bench
from remoting.native import core as native

BATCHES = (1, 16, 128, 1024)
ROUNDS = 9
WIDTH = 18


def measure(bench: StoreBench, queues: int, batches: Sequence[int], total: int) -> dict[int, Meter]:
    """Return the costs of each batch size."""
    store, due, body, seed, found = bench.store, bench.due, bytes(100), 0, {}
    for batch in batches:
        meter = found[batch] = Meter()
        size = max(batch, total // 4 if batch == 1 else total) // batch * batch
        for _ in range(ROUNDS):
            groups = [messages(batch, queues, at, body) for at in range(seed, seed + size, batch)]
            seed += size
            meter.start()
            for group in groups:
                store.append(*group)
                while due:
                    due.popleft()()
            meter.stop(size)
    return found


def main() -> None:
    """Run the table for each twin."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=65_536, help="per round; a quarter of it in batches of 1")
    parser.add_argument("--queues", type=int, nargs="*", default=[1000, 100_000, 1_000_000])
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES)
    parser.add_argument("--flush", choices=["sync", "async"], default="async")
    parser.add_argument("--twin", choices=["both", "compiled", "pure"], default="both")
    options = parser.parse_args()
    twins = [native.pure_core()] if native.choice.name == "pure" else [native.compiled_core(), native.pure_core()]
    print(f"CPU us/message, best / median of {ROUNDS} rounds")
    print("queues   twin     part" + "".join(f"{f'batch {batch}':>{WIDTH}}" for batch in options.batches))
    for queues in options.queues:
        for twin in twins:
            if options.twin not in {"both", twin.name}:
                continue
            native.core = twin
            with store_bench(queues, segment_size_bytes=256 * MIB, flush=options.flush) as bench:
                found = measure(bench, queues, options.batches, options.messages)
            for part in ("all", "loop"):
                costs = [meter.process_us if part == "all" else meter.loop_us for meter in found.values()]
                cells = "".join(f"{best_and_median(each):>{WIDTH}}" for each in costs)
                print(f"{queues:>7}  {twin.name:<9}{part:<4}{cells}", flush=True)


if __name__ == "__main__":
    main()
