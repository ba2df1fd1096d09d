"""What durable state costs: superseded changes, snapshots, carrying forward, and a start without a snapshot.

Changes a number of keys repeatedly, as consumer offsets change, beside keys that are written only once, with small log
files and a retention by size. Prints the CPU per change, how many entries retention appended again, the size and time
of a snapshot, and how long a start takes with it and from the log alone.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import structlog

from broker.store.inspection.verifier import verify
from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from broker.store.state.state_tables import save_snapshot
from runtime.clock import SystemClock
from runtime.faults import FaultPoints

MIB = 1024 * 1024
BATCH = 500
SETTINGS = StoreSettings(
    segment_size_bytes=4 * MIB, retention_size_bytes=24 * MIB, snapshot_log_bytes=16 * MIB, ballast_size_bytes=0
)


class Bench:
    """A store whose loop is a queue of functions."""

    def __init__(self, directory: Path) -> None:
        self.due: deque[Callable[[], None]] = deque()
        begun = time.monotonic()
        self.store = LogStore.open(
            directory, SETTINGS, clock=SystemClock(), faults=FaultPoints(), schedule=self.due.append,
            log=structlog.get_logger(),
        )  # fmt: skip
        self.opened_s = time.monotonic() - begun

    def turn(self) -> None:
        """Run what is due, and the upkeep."""
        while self.due:
            self.due.popleft()()
        self.store.maintain(0)


def change(bench: Bench, keys: int, total: int) -> float:
    """Make `total` changes; return CPU microseconds per change, upkeep and threads included."""
    begun = time.process_time()
    for first in range(0, total, BATCH):
        bench.store.append_state([
            StateChange(state_kinds.GROUP_OFFSET, b"group\x00topic-%d\x000" % (n * 7919 % keys), b"%016d" % n)
            for n in range(first, first + BATCH)
        ])  # fmt: skip
        bench.turn()
    return (time.process_time() - begun) / total * 1e6


def main() -> None:
    """Run and print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--idle", type=int, default=5_000)
    parser.add_argument("--changes", type=int, default=2_000_000)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="state-upkeep-", dir="."))
    try:
        bench = Bench(directory)
        idle = [StateChange(state_kinds.SESSION, b"client-%d" % n, bytes(200)) for n in range(options.idle)]
        bench.store.append_state(idle)
        micros = change(bench, options.keys, options.changes)
        carried = bench.store.retention.carried.total
        found = bench.store.metrics()
        print(f"{options.changes} changes of {options.keys} keys: {micros:.2f} us CPU each")
        print(f"appended again by retention: {carried} ({carried / options.changes:.3f} per change)")
        kept = (found["end_position"] - found["begin_position"]) / MIB
        print(f"log written {found['end_position'] / MIB:.0f} MiB, kept {kept:.0f} MiB")
        begun = time.monotonic()
        frozen = bench.store.state.freeze()
        copied = time.monotonic()
        save_snapshot(directory / "state", found["end_position"], frozen)
        size = (directory / "state" / "SNAPSHOT").stat().st_size
        print(
            f"snapshot: {size / MIB:.2f} MiB, {1e3 * (copied - begun):.1f} ms loop, {time.monotonic() - copied:.3f} s"
        )
        bench.store.close()
        again = Bench(directory)
        print(f"start with snapshot: {again.opened_s:.3f} s")
        again.store.close()
        shutil.rmtree(directory / "state")
        shutil.rmtree(directory / "index")
        alone = Bench(directory)
        print(f"start from the log alone: {alone.opened_s:.2f} s, {alone.store.replayed_records} records")
        alone.store.close()
        begun = time.monotonic()
        report = verify(directory)
        print(f"verify: {len(report.errors)} errors, {time.monotonic() - begun:.2f} s")
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
