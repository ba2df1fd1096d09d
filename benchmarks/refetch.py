"""A replica that lost its disk: seconds and CPU per GiB until it has the group's whole log, and what senders notice.

The master of a group of two gets 1 KiB messages while the replica is down; the replica's directory is deleted, and it
starts again. Meanwhile a client sends a message every 10 ms to the master and waits for each acknowledgement: its times
before and during the transfer show how long the master's loop was held up. Both brokers flush before they acknowledge,
and share the cores and the disk of this machine. The data goes to `TMPDIR`, twice the size of `--gib`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.cpu_clocks import process_cpu_s
from benchmarks.group_load import BEHIND_BODY_BYTES, GIB, TOPIC, make_topic, produce
from benchmarks.group_processes import Group, Started, folder_for_data
from remoting.client.batching import AsyncProducer, Message, ProducerSettings
from remoting.client.connection import connect
from runtime.process import run

FILL_MESSAGES = 200_000
EVERY_S = 0.01
BEFORE_S = 5.0
POLL_S = 0.25


class Sends:
    """Times of single sends, in seconds, until it is told to end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.taken_s: list[float] = []
        self.is_over = asyncio.Event()

    async def run(self) -> None:
        """Send one after the other."""
        connection = await connect("127.0.0.1", self._port)
        producer = AsyncProducer(connection, ProducerSettings(linger_ms=0))
        while not self.is_over.is_set():
            begun = time.perf_counter()
            await (await producer.send(Message(topic=TOPIC, body=bytes(BEHIND_BODY_BYTES))))
            self.taken_s.append(time.perf_counter() - begun)
            await asyncio.sleep(EVERY_S)
        await producer.close()
        await connection.close()

    def told(self) -> str:
        """Median, 99th percentile and maximum."""
        cuts = statistics.quantiles(self.taken_s, n=100)
        return f"p50 {1e3 * cuts[49]:.1f}, p99 {1e3 * cuts[98]:.1f}, max {1e3 * max(self.taken_s):.1f} ms"


async def while_waiting(port: int, wait: Callable[[], None]) -> Sends:
    """Send until another thread has waited."""
    sends = Sends(port)
    sending = asyncio.create_task(sends.run())
    await asyncio.to_thread(wait)
    sends.is_over.set()
    await sending
    return sends


def until_in_sync(master: Started, count: int) -> None:
    """Wait, however long it takes, until the master reports so many members in sync."""
    while len(master.member().get("in_sync", ())) < count:
        time.sleep(POLL_S)


async def refetch(master: Started, replica: Started, gib: float) -> None:
    """Print what the transfer takes, beginning with the replica's start."""
    before = await while_waiting(master.port, partial(time.sleep, BEFORE_S))
    print(f"sends before   {before.told()}", flush=True)
    used_s = process_cpu_s(master.id)
    begun = time.perf_counter()
    await asyncio.to_thread(replica.start)
    meanwhile = await while_waiting(master.port, partial(until_in_sync, master, 2))
    wall_s = time.perf_counter() - begun
    print(f"sends meanwhile {meanwhile.told()}")
    cpu = f"CPU s per GiB: master {(process_cpu_s(master.id) - used_s) / gib:.2f}, "
    cpu += f"replica {process_cpu_s(replica.id) / gib:.2f}"
    print(f"{gib:.2f} GiB in {wall_s:.1f} s: {wall_s / gib:.2f} s per GiB, {gib * GIB / wall_s / 1e6:.0f} MB/s; {cpu}")


def main() -> None:
    """Fill, wipe, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lightmq-bench-", dir=folder_for_data()) as name:
        group = Group(Path(name), 2, in_sync_min=1)
        try:
            group.start()
            master, replica = group.brokers
            run(make_topic(master.port))
            replica.end()
            shutil.rmtree(Path(name) / replica.name)
            while (end := int(master.member()["end"])) < options.gib * GIB:
                run(produce(master.port, FILL_MESSAGES, BEHIND_BODY_BYTES))
            os.sync()
            run(refetch(master, replica, end / GIB))
        finally:
            group.end()


if __name__ == "__main__":
    main()
