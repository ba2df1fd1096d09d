"""What replication costs: CPU per 100-byte message of master and replica, with no, one and two replicas, and the rate.

The replicas are processes of their own over loopback, in the SyncStateSet, so that every message is confirmed only when
all of them have flushed it. Per turn of the loop one batch is appended. `loop` is the CPU time of a process's loop
thread per message, `all` that of all its threads, of the replicas' the mean; `added` is what the replicas add to the
master's loop. Rates are wall clock and share the machine. `fdatasync` costs CPU of the thread that calls it, which
differs from disk to disk: `TMPDIR=/dev/shm` leaves it out, without a disk to wait for.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from benchmarks.cpu_clocks import loop_cpu_s, process_cpu_s
from benchmarks.stores import PROPERTIES
from broker.replication.follower import ReplicaIdentity
from broker.replication.ha_client import HaClient
from broker.replication.ha_server import HaServer
from broker.replication.leader import Acknowledge, Leader, LeaderSettings, SyncStateSet
from broker.store.log_store import LogStore
from broker.store.placed import Placed
from broker.store.settings import StoreSettings
from remoting.protocol.records.image import encode_image
from remoting.transport.turn import soon
from runtime.clock import SystemClock
from runtime.faults import FaultPoints
from runtime.process import run, settle_garbage

LOG = structlog.get_logger()
BODY = bytes(100)
BEHIND_BYTES_MAX = 8 * 1024 * 1024
ROUNDS = 5
COLUMNS = "master loop  master all  replica loop  replica all"


class Cost(NamedTuple):
    """CPU us per message, and messages a second."""

    master_loop: float
    master_all: float
    replica_loop: float
    replica_all: float
    rate: float


def open_store(directory: Path, flush: str, **role: Any) -> LogStore:
    """A store on the running loop."""
    settings = StoreSettings(flush=flush, free_space_bytes_min=1, ballast_size_bytes=0, segment_size_bytes=64 << 20)
    loop = asyncio.get_running_loop()

    def schedule(function: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(function)

    return LogStore.open(
        directory, settings, clock=SystemClock(), faults=FaultPoints(), schedule=schedule, log=LOG, soon=soon, **role
    )


async def replicate(directory: Path, broker: int, port: int, flush: str) -> None:
    """A replica until standard input ends."""
    store = open_store(directory, flush, role="replica")
    client = HaClient(
        store, ReplicaIdentity(broker=broker, cluster="c", group="g"), f"127.0.0.1:{port}", 1, silence_ms=60_000,
        superseded=lambda _epoch: None, failed=lambda error: sys.exit(str(error)), log=LOG,
    )  # fmt: skip
    client.start()
    settle_garbage()
    await asyncio.to_thread(sys.stdin.read)
    await client.stop()
    store.close()


async def lead(directory: Path, replicas: int, options: argparse.Namespace) -> dict[int, Cost]:
    """Batch size -> what a message costs."""
    store = open_store(directory / "1", options.flush, epoch=1)
    server = HaServer(SystemClock(), LOG, keys={}, open_to_all=True, superseded=lambda _epoch: None)
    port = await server.start("127.0.0.1", 0)
    members = SyncStateSet(range(1, 2 + replicas), 1)
    leader = Leader(
        1, 1, 0, members, Acknowledge(), LeaderSettings(silence_ms=60_000), cluster="c", group="g", confirm=0,
        now_ms=server.streams.now_ms(),
    )  # fmt: skip
    server.streams.lead(leader, store)
    command = [sys.executable, "-m", "benchmarks.replication_cost", "--flush", options.flush, "--port", str(port)]
    children = [
        await asyncio.create_subprocess_exec(
            *command, "--replica", str(broker), "--directory", str(directory), stdin=asyncio.subprocess.PIPE
        )
        for broker in range(2, 2 + replicas)
    ]
    queue = store.queues.open(b"q")
    await confirmed(store)  # by all of them
    settle_garbage()
    found = {}
    for batch in options.batches:
        processes = [child.pid for child in children]
        rounds = [await one_round(store, queue, batch, options.messages, processes) for _ in range(ROUNDS)]
        best = Cost._make(map(min, zip(*rounds, strict=True)))
        found[batch] = best._replace(rate=statistics.median(each.rate for each in rounds))
    for child in children:
        await child.communicate(b"")
    await server.stop()
    store.close()
    return found


async def confirmed(store: LogStore, behind_bytes: int = 0) -> None:
    """Wait until all but the newest bytes are confirmed."""
    done = asyncio.get_running_loop().create_future()
    store.when_confirmed(store.end_position - behind_bytes, done.set_result)
    await done


async def one_round(store: LogStore, queue: int, batch: int, total: int, replicas: Sequence[int]) -> Cost:
    """Append, let the loop turn, and wait until all is confirmed."""
    count = (total // 8 if batch == 1 else total) // batch
    group = [
        Placed(encode_image(flags=9, born_ms=1, topic=b"plant", properties=PROPERTIES, body=BODY), [(queue,)])
        for _ in range(batch)
    ]
    started, before = time.perf_counter(), spent_s(replicas)
    for _ in range(count):
        store.append(*group)
        await asyncio.sleep(0)
        if store.end_position - store.confirm_position > BEHIND_BYTES_MAX:
            await confirmed(store, BEHIND_BYTES_MAX)
    await confirmed(store)
    spent, wall_s = spent_s(replicas), time.perf_counter() - started
    used = [(after - earlier) * 1e6 / (count * batch) for earlier, after in zip(before, spent, strict=True)]
    return Cost._make((*used, count * batch / wall_s))


def spent_s(replicas: Sequence[int]) -> list[float]:
    """CPU seconds so far: of the loop here, of this process, and the mean of both over the replicas."""
    each = max(1, len(replicas))
    loops, processes = sum(map(loop_cpu_s, replicas)) / each, sum(map(process_cpu_s, replicas)) / each
    return [loop_cpu_s(os.getpid()), process_cpu_s(os.getpid()), loops, processes]


def main() -> None:
    """Print the table, or be a replica of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 16, 128, 1024])
    parser.add_argument("--flush", choices=["sync", "async"], default="async")
    parser.add_argument("--replica", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    if options.replica:
        directory = options.directory / str(options.replica)
        run(replicate(directory, options.replica, options.port, options.flush))
        return
    alone: dict[int, Cost] = {}
    print(f"CPU us per message\nreplicas  batch  {COLUMNS}   added   messages/s")
    for replicas in (0, 1, 2):
        with tempfile.TemporaryDirectory(prefix="lightmq-bench-") as name:
            found = run(lead(Path(name), replicas, options))
        alone = alone or found
        for batch, cost in found.items():
            used = (
                f"{cost.master_loop:11.3f} {cost.master_all:11.3f} {cost.replica_loop:13.3f} {cost.replica_all:12.3f}"
            )
            added = cost.master_loop - alone[batch].master_loop
            print(f"{replicas:8}  {batch:5}  {used}  {added:6.3f}  {cost.rate:11,.0f}", flush=True)


if __name__ == "__main__":
    main()
