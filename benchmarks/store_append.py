"""CPU per message of `LogStore.append` on both twins: batches of 1 to 1024 messages into 3 queues each, to 1M queues.

Process time of all threads (appending, confirming, flushing, index runs), the best of five rounds. With `--flush sync`
fdatasync runs beside it and is part of the figure. Nothing here is gated on time.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import structlog

from broker.store import hot
from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from broker.store.store_message import StoreMessage
from runtime.clock import SystemClock
from runtime.faults import FaultPoints

BATCHES = (1, 16, 128, 1024)
ROUNDS = 5
META = b"\x0f\x00\x14\x00" + b"plant" + b"originMqttTopic" + b"plant/line/1/machine"


def messages(count: int, queues: int, seed: int, body: bytes) -> list[StoreMessage]:
    """Messages for 1 of 4 parent queues, 1 of 100 wildcard ones, 1 of the rest."""
    made = []
    for at in range(seed, seed + count):
        light = 104 + (at * 7919) % max(queues - 104, 1) if queues > 104 else at % queues
        spread = (at % 4 % queues, (4 + at % 100) % queues, light)
        made.append(StoreMessage(tuple(dict.fromkeys(spread)), at, 9, 0, 1, 5, 0, 0, 35, META, body))
    return made


def measure(directory: Path, queues: int, batches: Sequence[int], total: int, flush: str) -> dict[int, float]:
    """Return CPU microseconds per message of the whole process for each batch size, the best of some rounds."""
    pending: deque = deque()
    store = LogStore.open(
        directory,
        StoreSettings(segment_size_bytes=256 * 1024 * 1024, flush=flush),
        clock=SystemClock(),
        faults=FaultPoints(),
        schedule=pending.append,
        log=structlog.get_logger(),
    )
    for first in range(0, queues, 50_000):
        store.open_queues([b"q%d" % number for number in range(first, min(first + 50_000, queues))])
    found = {}
    for batch in batches:
        size = max(batch, total // 4 if batch == 1 else total)
        groups = [messages(batch, queues, at, bytes(100)) for at in range(0, size, batch)]
        gc.collect()
        gc.freeze()
        costs = []
        step = max(1, len(groups) // ROUNDS)
        for begin in range(0, len(groups) - step + 1, step):
            begun = time.process_time()
            for group in groups[begin : begin + step]:
                store.append(group)
                while pending:
                    pending.popleft()()
            costs.append((time.process_time() - begun) / (step * batch) * 1e6)
        found[batch] = min(costs)
        gc.unfreeze()
    store.close()
    return found


def main() -> None:
    """Run the table for each twin."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--queues", type=int, nargs="*", default=[1000, 100_000, 1_000_000])
    parser.add_argument("--flush", choices=["sync", "async"], default="async")
    options = parser.parse_args()
    twins = [hot.pure_core()] if hot.choice.name == "pure" else [hot.compiled_core(), hot.pure_core()]
    print("CPU us/message (M messages/s); ratio: pure over compiled")
    print("queues   twin     " + "".join(f"{f'batch {batch}':>16}" for batch in BATCHES))
    for queues in options.queues:
        seen: list[dict[int, float]] = []
        for twin in twins:
            hot.core = twin
            directory = Path(tempfile.mkdtemp(prefix="store-append-", dir="."))
            try:
                seen.append(measure(directory, queues, BATCHES, options.messages, options.flush))
            finally:
                shutil.rmtree(directory)
            cells = "".join(f"{f'{cost:.2f} ({1 / cost:.2f})':>16}" for cost in seen[-1].values())
            print(f"{queues:>7}  {twin.name:<9}{cells}", flush=True)
        if len(seen) == 2:
            print(f"{queues:>7}  ratio    " + "".join(f"{seen[1][b] / seen[0][b]:>16.1f}" for b in BATCHES), flush=True)


if __name__ == "__main__":
    main()
