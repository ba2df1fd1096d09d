"""CPU per message of `LogStore.append`: batches of 1, 16 and 128 messages into 3 queues each, over 1k to 100k queues.

Prints CPU microseconds per message (all threads of the process) and the share of the loop thread alone. The flusher
runs, so fdatasync is part of the first figure. Nothing here is gated on time.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import deque
from pathlib import Path

import structlog

from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from broker.store.store_message import StoreMessage
from runtime.clock import SystemClock
from runtime.faults import FaultPoints

META = b"\x0f\x00\x14\x00" + b"plant" + b"originMqttTopic" + b"plant/line/1/machine"


def messages(count: int, queues: int, seed: int, body: bytes) -> list[StoreMessage]:
    """Messages for 1 of 4 parent queues, 1 of 100 wildcard ones, 1 of the rest."""
    made = []
    for at in range(seed, seed + count):
        light = 104 + (at * 7919) % max(queues - 104, 1) if queues > 104 else at % queues
        spread = (at % 4 % queues, (4 + at % 100) % queues, light)
        made.append(StoreMessage(tuple(dict.fromkeys(spread)), at, 9, 0, 1, 5, 0, 0, 35, META, body))
    return made


def measure(directory: Path, queues: int, batch: int, total: int) -> tuple[float, float]:
    """Return CPU microseconds per message: whole process, loop thread."""
    pending: deque = deque()
    store = LogStore.open(
        directory,
        StoreSettings(segment_size_bytes=256 * 1024 * 1024),
        clock=SystemClock(),
        faults=FaultPoints(),
        schedule=pending.append,
        log=structlog.get_logger(),
    )
    store.open_queues([b"q%d" % number for number in range(queues)])
    batches = [messages(batch, queues, at, bytes(100)) for at in range(0, total, batch)]
    process, thread = time.process_time(), time.thread_time()
    for group in batches:
        store.append(group)
        while pending:
            pending.popleft()()
    loop_us = (time.thread_time() - thread) / total * 1e6
    process_us = (time.process_time() - process) / total * 1e6
    store.close()
    return process_us, loop_us


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=40_000)
    options = parser.parse_args()
    print("queues   batch   CPU us/message: process  loop thread")
    for queues in (1, 1000, 100_000):
        for batch in (1, 16, 128):
            directory = Path(tempfile.mkdtemp(prefix="store-append-", dir="."))
            try:
                process, loop = measure(directory, queues, batch, options.messages)
            finally:
                shutil.rmtree(directory)
            print(f"{queues:>7} {batch:>6} {process:>24.2f} {loop:>12.2f}", flush=True)


if __name__ == "__main__":
    main()
