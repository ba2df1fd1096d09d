"""What replication costs the master: CPU of its loop per 100-byte message, with no, one and two replicas, and the rate.

The replicas are processes of their own over loopback, in the SyncStateSet, so that every message is confirmed only when
all of them have flushed it. Per turn of the loop one batch is appended; `loop` is the CPU time of the master's loop
thread per message, the last column what the replicas add to it. Rates are wall clock and share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from benchmarks.stores import META
from broker.replication.acknowledge import Acknowledge
from broker.replication.follower import Identity
from broker.replication.ha_client import HaClient
from broker.replication.ha_server import HaServer
from broker.replication.leader import Leader, LeaderSettings
from broker.replication.sync_state_set import SyncStateSet
from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from broker.store.store_message import StoreMessage
from remoting.transport.turn import soon
from runtime.clock import SystemClock
from runtime.faults import FaultPoints

LOG = structlog.get_logger()
BODY = bytes(100)
BEHIND_BYTES_MAX = 8 * 1024 * 1024
ROUNDS = 5


def open_store(directory: Path, flush: str, **role: object) -> LogStore:
    """A store on the running loop."""
    settings = StoreSettings(flush=flush, free_space_bytes_min=1, ballast_size_bytes=0, segment_size_bytes=64 << 20)
    schedule = asyncio.get_running_loop().call_soon_threadsafe
    return LogStore.open(
        directory, settings, clock=SystemClock(), faults=FaultPoints(), schedule=schedule, log=LOG, soon=soon, **role
    )  # type: ignore[arg-type]


async def replicate(directory: Path, broker: int, port: int, flush: str) -> None:
    """A replica until standard input ends."""
    store = open_store(directory, flush, role="replica")
    client = HaClient(
        store, Identity(broker=broker, cluster="c", group="g"), f"127.0.0.1:{port}", 1, silence_ms=60_000,
        superseded=lambda _epoch: None, failed=lambda error: sys.exit(str(error)), log=LOG,
    )  # fmt: skip
    client.start()
    await asyncio.to_thread(sys.stdin.read)
    await client.stop()
    store.close()


async def lead(directory: Path, replicas: int, options: argparse.Namespace) -> dict[int, tuple[float, float]]:
    """Batch size -> (CPU us per message of the loop, messages per second)."""
    store = open_store(directory / "1", options.flush, epoch=1)
    server = HaServer(SystemClock(), LOG, keys={}, open_to_all=True, superseded=lambda _epoch: None)
    port = await server.start("127.0.0.1", 0)
    members = SyncStateSet(range(1, 2 + replicas), 1)
    leader = Leader(
        1, 1, 0, members, Acknowledge(), LeaderSettings(silence_ms=60_000), cluster="c", group="g", confirm=0,
        now_ms=server.now_ms(),
    )  # fmt: skip
    server.lead(leader, store)
    command = [sys.executable, "-m", "benchmarks.replication_cost", "--flush", options.flush, "--port", str(port)]
    children = [
        await asyncio.create_subprocess_exec(
            *command, "--replica", str(broker), "--directory", str(directory), stdin=asyncio.subprocess.PIPE
        )
        for broker in range(2, 2 + replicas)
    ]
    await until(lambda: sum(each.acknowledged >= 0 for each in leader.replicas()) == replicas)
    queue = store.open_queue(b"q")
    found = {}
    for batch in options.batches:
        rounds = [await one_round(store, queue, batch, options.messages) for _ in range(ROUNDS)]
        found[batch] = (min(cpu for cpu, _ in rounds), statistics.median(rate for _, rate in rounds))
    for child in children:
        await child.communicate(b"")
    await server.stop()
    store.close()
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Look now and then."""
    while not condition():  # noqa: ASYNC110 - what is looked at belongs to the store, which sets no event
        await asyncio.sleep(0.001)


async def one_round(store: LogStore, queue: int, batch: int, total: int) -> tuple[float, float]:
    """Append, let the loop turn, and wait until all is confirmed."""
    count = (total // 8 if batch == 1 else total) // batch
    group = [StoreMessage((queue,), 1, 9, 0, 1, 5, 0, 0, 35, META, BODY) for _ in range(batch)]
    started, cpu = time.perf_counter(), time.thread_time()
    for _ in range(count):
        store.append(group)
        await asyncio.sleep(0)
        if store.end_position - store.confirm_position > BEHIND_BYTES_MAX:
            await until(lambda: store.end_position - store.confirm_position <= BEHIND_BYTES_MAX)
    await until(lambda: store.confirm_position >= store.end_position)
    used, wall = time.thread_time() - cpu, time.perf_counter() - started
    return used * 1e6 / (count * batch), count * batch / wall


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
        asyncio.run(replicate(directory, options.replica, options.port, options.flush))
        return
    alone: dict[int, tuple[float, float]] = {}
    print("replicas  batch   loop us/message   messages/s   added us/message")
    for replicas in (0, 1, 2):
        with tempfile.TemporaryDirectory(prefix="lightmq-bench-") as name:
            found = asyncio.run(lead(Path(name), replicas, options))
        alone = alone or found
        for batch, (cpu, rate) in found.items():
            print(f"{replicas:8}  {batch:5}  {cpu:16.3f}  {rate:11,.0f}  {cpu - alone[batch][0]:17.3f}", flush=True)


if __name__ == "__main__":
    main()
