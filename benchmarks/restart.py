"""How long a store takes to start: after kill -9, after a clean stop, from the log alone; and a full check.

Makes a store with a million queues and one with a million messages in three queues each. Every start is a process of
its own; figures are the least of the rounds: seconds until `LogStore.open` returns, its CPU, and (for a whole broker)
seconds until its ready line, the interpreter's start included. `--pure` measures the pure twin.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path

import structlog

from broker.store.inspection.verifier import verify
from broker.store.log_store import LogStore
from broker.store.placed import Placed
from broker.store.settings import StoreSettings
from remoting.native import core as native
from remoting.native.choice import PURE_VARIABLE
from remoting.protocol.records.image import encode_image
from runtime.clock import SystemClock
from runtime.faults import FaultPoints

BATCH = 1024
ROUNDS = 3
BODY = bytes(100)
Figures = dict[str, float]


def opened(directory: Path) -> tuple[LogStore, deque[Callable[[], None]]]:
    """A store with a broker's settings, and what is due on its loop."""
    due: deque[Callable[[], None]] = deque()
    store = LogStore.open(
        directory, StoreSettings(), clock=SystemClock(), faults=FaultPoints(), schedule=due.append,
        log=structlog.get_logger(),
    )  # fmt: skip
    return store, due


def turn(due: deque[Callable[[], None]]) -> None:
    """Do what is due."""
    while due:
        due.popleft()()


def child(work: Callable[[], object]) -> Figures:
    """Do `work` in a process of its own, which then dies by kill -9; return what it returned."""
    answers, answer = os.pipe()
    process = os.fork()
    if process == 0:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
        try:
            os.write(answer, json.dumps(work()).encode())
        except Exception:  # noqa: BLE001 - the parent sees it by the missing answer
            traceback.print_exc()
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(answer)
    os.waitpid(process, 0)
    said = os.read(answers, 1 << 16)
    os.close(answers)
    return dict(json.loads(said))


def make_queues(directory: Path, queues: int) -> Figures:
    """Make the queues, in a store that is then closed."""
    store, due = opened(directory)
    for first in range(0, queues, 10_000):
        store.queues.open_all(
            [b"%%LMQ%%plant%%2Fmachine-%07d%%2Ftemperature" % n for n in range(first, first + 10_000)]
        )
        turn(due)
    store.close()
    return {}


def fill_tail(directory: Path, queues: int) -> Figures:
    """Append messages in three queues each until one more batch would make a run; confirmed, then killed."""
    store, due = opened(directory)
    number, end = 0, 0
    while store.metrics()["index_tail_entries"] + 3 * BATCH < StoreSettings().flush_entries:
        batch = [message((n % 4, n % 1000, n * 7919 % queues)) for n in range(number, number + BATCH)]
        end = store.append(*batch).end_position
        number += BATCH
        turn(due)
    while store.confirm_position < end:
        turn(due)
        time.sleep(0.001)
    return {"messages": number, "entries": store.metrics()["index_tail_entries"]}


def message(queues: tuple[int, ...]) -> Placed:
    """100 bytes in these queues."""
    return Placed(encode_image(flags=0, born_ms=1, topic=b"plant", body=BODY), [tuple(dict.fromkeys(queues))])


def make_messages(directory: Path, messages: int, queues: int) -> Figures:
    """A store with many messages in three queues each, closed."""
    store, due = opened(directory)
    store.queues.open_all([b"queue-%d" % n for n in range(queues)])
    for first in range(0, messages, BATCH):
        count = min(BATCH, messages - first)
        store.append(*[message((n % 4, n % 1000, n * 7919 % queues)) for n in range(first, first + count)])
        turn(due)
        store.maintain(0)
    store.close()
    return {}


def start(directory: Path) -> Figures:
    """Open the store; return wall and CPU seconds and the records replayed."""
    wall, cpu = time.perf_counter(), time.process_time()
    store, _ = opened(directory)
    return {
        "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "records": store.replayed_records,
    }  # fmt: skip


def stop_cleanly(directory: Path) -> Figures:
    """Open and close the store."""
    store, due = opened(directory)
    store.close()
    turn(due)
    return {}


def broker_ready(directory: Path) -> Figures:
    """Start a broker process and kill it; return seconds until its ready line."""
    wall = time.perf_counter()
    command = [sys.executable, "-m", "broker", f"--data-directory={directory}", "--port=0", "--admin-port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        wall = time.perf_counter() - wall
        process.kill()
    return {"wall": wall, "cpu": 0.0, "records": 0}


def least(rounds: list[Figures]) -> Figures:
    """The smallest of each figure."""
    return {name: min(each[name] for each in rounds) for name in rounds[0]}


def show(what: str, found: Figures, per: float = 0) -> None:
    """Print one line."""
    rate = f"  {per / found['cpu'] / 1e6:5.2f} M msg/s of CPU" if per else ""
    cpu = f"  CPU {found['cpu']:6.3f} s" if found["cpu"] else ""
    print(f"{what:<44} wall {found['wall']:6.3f} s{cpu}{rate}", flush=True)


def restarts(directory: Path, queues: int) -> None:
    """Starts of a store with many queues and a full tail."""
    child(lambda: make_queues(directory, queues))
    filled = child(lambda: fill_tail(directory, queues))
    print(f"{queues} queues, {filled['entries']:.0f} entries in the tail", flush=True)
    show("after kill -9: LogStore.open", least([child(lambda: start(directory)) for _ in range(ROUNDS)]))
    show("after kill -9: broker until ready", least([broker_ready(directory) for _ in range(ROUNDS)]))
    clean = []
    for _ in range(ROUNDS):
        child(lambda: stop_cleanly(directory))
        clean.append(child(lambda: start(directory)))
    show("after a clean stop: LogStore.open", least(clean))


def rebuild(directory: Path, messages: int, queues: int) -> None:
    """Index and state from the log alone, and a full check."""
    child(lambda: make_messages(directory, messages, queues))
    rounds = []
    for _ in range(ROUNDS):
        for derived in ("index", "state"):
            shutil.rmtree(directory / derived)
        rounds.append(child(lambda: start(directory)))
        child(lambda: stop_cleanly(directory))
    show(f"index and state of {messages} messages from the log", least(rounds), messages)
    checks = [child(lambda: checked(directory)) for _ in range(ROUNDS)]
    best = least(checks)
    show("verify", best)
    print(f"verify: {best['cpu'] / best['records'] * 1e6:.3f} us of CPU per record", flush=True)


def checked(directory: Path) -> Figures:
    """A full check."""
    wall, cpu = time.perf_counter(), time.process_time()
    report = verify(directory)
    assert not report.errors, report.errors[:3]
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "records": report.records}


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queues", type=int, default=1_000_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--pure", action="store_true", help="the pure twin")
    parser.add_argument("--directory", type=Path, default=Path(), help="where the stores are made")
    options = parser.parse_args()
    if options.pure:
        native.core = native.pure_core()
        os.environ[PURE_VARIABLE] = "1"
    print(f"{native.core.name} twin")
    root = Path(tempfile.mkdtemp(prefix="restart-", dir=options.directory))
    try:
        restarts(root / "queues", options.queues)
        shutil.rmtree(root / "queues")
        rebuild(root / "messages", options.messages, 10_000)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
