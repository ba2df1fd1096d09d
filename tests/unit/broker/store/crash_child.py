"""A process to be killed: appends numbered messages for ever and prints what is confirmed."""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path

import structlog

from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from runtime.clock import SystemClock
from runtime.faults import FaultPoints
from tests.sim.stores import message


def main() -> None:
    """Append until killed: `message number` in three queues, a ledger entry per batch."""
    directory, number = Path(sys.argv[1]), int(sys.argv[2])
    due: deque = deque()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    limits = StoreSettings(
        segment_size_bytes=64 * 1024, index_tail_entries=512, index_merge_runs=3, snapshot_log_bytes=100_000,
        retention_ms=0, free_space_bytes_min=0, ballast_size_bytes=0,
    )  # fmt: skip
    store = LogStore.open(
        directory, limits, clock=SystemClock(), faults=FaultPoints(), schedule=due.append, log=structlog.get_logger()
    )
    queues = store.queues.open_all([b"parent"] + [b"light%d" % n for n in range(7)])
    while True:
        numbers = range(number, number + 1 + number % 23)
        batch = [message([queues[0], queues[1 + n % 7]], b"%010d" % n) for n in numbers]
        number += len(batch)
        change = StateChange(state_kinds.LEDGER, b"sink", b"%010d" % number)
        end = store.append(*batch, changes=[change]).end_position
        store.when_confirmed(end, lambda error, number=number: print(number, flush=True) if error is None else None)
        store.maintain(0)
        time.sleep(0.0002)
        while due:
            due.popleft()()


main()
