"""Memory and start of a broker process with a million queues.

Makes the queues (and one message in each), then starts `python -m broker` on them: after a clean stop, after kill -9,
and without any snapshot or index. Prints seconds until the ready line (the interpreter's start included) and resident
memory in MiB one second later: all of it, the part that is not mapped files, and the peak. The cost of opening the
store alone is printed first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import structlog

from broker.store.log_store import LogStore
from broker.store.placed import Placed
from broker.store.settings import StoreSettings
from broker.store.state.name_table import VALUE, NameTable
from remoting.protocol.records.image import encode_image
from runtime.clock import SystemClock
from runtime.faults import FaultPoints

META = b"plant"
BATCH = 10_000
MIB = 1024


def name(number: int) -> bytes:
    """A light queue's name of 39 bytes."""
    return b"%%LMQ%%plant%%2Fmachine-%07d%%2Ftemperature" % number


def make(directory: Path, queues: int) -> None:
    """Make the queues, one message in each."""
    due: deque[Callable[[], None]] = deque()
    store = LogStore.open(
        directory, StoreSettings(), clock=SystemClock(), faults=FaultPoints(), schedule=due.append,
        log=structlog.get_logger(),
    )  # fmt: skip
    parent = store.queues.open(b"plant")
    for first in range(0, queues, BATCH):
        ids = store.queues.open_all([name(number) for number in range(first, min(first + BATCH, queues))])
        image = encode_image(flags=0, born_ms=1, topic=META, body=bytes(100))
        store.append(*[Placed(image, [(parent, own)]) for own in ids])
        while due:
            due.popleft()()
    store.close()


def table_bytes(queues: int) -> int:
    """Bytes of the name table alone."""
    table = NameTable()
    for number in range(queues):
        table.put(name(number), VALUE.pack(number, 0), 0)
    pages = table._pages.values()  # noqa: SLF001
    rows = sum(sys.getsizeof(getattr(page, name)) for page in pages for name in page.__slots__)
    return rows + sum(map(sys.getsizeof, (table._slots, table._blob)))  # noqa: SLF001


def open_seconds(directory: Path) -> float:
    """Seconds that `LogStore.open` takes on a store that was not closed; the store is left as after kill -9."""
    due: deque[Callable[[], None]] = deque()
    begun = time.monotonic()
    LogStore.open(
        directory, StoreSettings(), clock=SystemClock(), faults=FaultPoints(), schedule=due.append,
        log=structlog.get_logger(),
    )  # fmt: skip
    return time.monotonic() - begun


def start(directory: Path, *, kill: bool) -> tuple[float, float, float, float]:
    """Start a broker process; return seconds until ready, resident MiB, anonymous MiB, and the peak."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "broker", f"--data-directory={directory}", "--port=0", "--admin-port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        ready = time.monotonic() - begun
        time.sleep(1)
        text = Path(f"/proc/{process.pid}/status").read_text()
        status = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        memory = [int(status[key].split()[0]) / MIB for key in ("VmRSS", "RssAnon", "VmHWM")]
        if kill:
            process.kill()
        else:
            process.terminate()
    return ready, memory[0], memory[1], memory[2]


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queues", type=int, default=1_000_000)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="queue-memory-", dir="."))
    try:
        print(f"name table of {options.queues} queues: {table_bytes(options.queues) / 2**20:.0f} MiB", flush=True)
        if os.fork() == 0:
            make(directory, options.queues)
            os._exit(0)
        os.wait()
        for _ in range(2):
            if os.fork() == 0:
                print(f"LogStore.open: {open_seconds(directory):.2f} s", flush=True)
                os._exit(0)
            os.wait()
        print("start            seconds  resident MiB  anonymous  peak")
        for what, kill, gone in (
            ("after a stop", True, ()),
            ("after kill -9", False, ()),
            ("from the log", False, ("index", "state")),
        ):
            for part in gone:
                shutil.rmtree(directory / part)
            ready, resident, anonymous, peak = start(directory, kill=kill)
            print(f"{what:<15} {ready:>8.2f} {resident:>13.0f} {anonymous:>10.0f} {peak:>5.0f}", flush=True)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
