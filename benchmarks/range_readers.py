"""Readers in their own processes: lag, speed, correctness, and the CPU they save the broker.

Three parts. `follow`: a writer process appends at full speed (asynchronous flush), a reader process follows one of its
queues and checks every record (checksum, queue, offset, content); the lag is from the append to the end of the read
that first shows the record. `bulk`: CPU per row of reading a whole queue in ranges of 8 MiB, by the store itself and by
an attached one. `broker`: a broker process takes a fixed rate of messages while a backlog is not read, while it is read
through the broker, and through reader processes: the broker's CPU per message taken, and how long acknowledgements
take. CPU is the kernel's account per process; milliseconds are wall time and depend on other load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import psutil

from benchmarks.stores import MIB, StoreBench, messages
from broker.store.attached.store import AttachedStore
from broker.store.index.reader import RangeResult
from remoting.client.blocking import BlockingConnection
from remoting.client.connection import connect
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import image
from spark_connector.options.read_write import parse_read
from spark_connector.queues import QueueRange
from spark_connector.reading.bounds import BoundsWatch
from spark_connector.reading.replicas import ShortCuts
from spark_connector.reading.selection import select
from spark_connector.reading.task import RangeFetcher
from tests.support.attached_follower import Follower

RANGE_BYTES = 8 * MIB
IDLE_S = 0.0002
ENTRIES_AT_ONCE = 20
RATE_PER_S = 4_000
TOPIC = "old"


def follow(total: int, pause_s: float, light: int | None) -> str:
    """Follow one queue of a writer; the figures as cells."""
    orders = {"settings": {"flush": "async"}, "stop_at": total, "pause_s": pause_s}
    with tempfile.TemporaryDirectory(prefix="range-readers-", dir=".") as folder:
        command = [sys.executable, "-m", "tests.support.attached_writer", f"{folder}/data", json.dumps(orders)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert writer.stdout is not None
        hello = json.loads(writer.stdout.readline())
        store = AttachedStore(Path(folder, "data"))
        queue = hello["parent"] if light is None else hello["lights"][light]
        follower = Follower(store, queue, light=light)
        while writer.poll() is None or follower.step():
            if not follower.step():
                time.sleep(IDLE_S)
        assert json.loads(writer.stdout.readline()) == {"done": total}
        store.close()
    lags = np.asarray(follower.lags_ns) / 1e6
    p50, p99 = np.percentile(lags, [50, 99])
    cells = f"{total:>10,} {follower.records:>10,} {len(lags):>8,} {store.retries:>8} {p50:>9.2f} {p99:>9.2f}"
    return f"{cells} {lags.max():>9.1f}"


class Ranges(Protocol):
    """A store of this process or of another one."""

    def read_range(self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int) -> RangeResult:
        """Return records of a queue in one piece."""
        raise NotImplementedError


def read_all(store: Ranges, queue: int, end: int) -> tuple[float, int]:
    """CPU microseconds per row of one pass over a queue, and its bytes."""
    begun, offset, size = time.process_time(), 0, 0
    while offset < end:
        found = store.read_range(queue, offset, 1_000_000, RANGE_BYTES, end)
        offset, size = found.next_offset, size + len(found.blob)
    return (time.process_time() - begun) / end * 1e6, size


def bulk(rows: int, rounds: int) -> Iterator[str]:
    """The cost of a row here and there, best of the rounds."""
    with tempfile.TemporaryDirectory(prefix="range-readers-", dir=".") as folder:
        bench = StoreBench(Path(folder, "data"), 1, flush="async")
        for first in range(0, rows, 1_000):
            bench.store.append(*messages(1_000, 1, first, bytes(100)))
            bench.turn()
        bench.settle()
        attached = AttachedStore(Path(folder, "data"))
        for name, store in (("the store itself", bench.store.reading), ("attached", attached)):
            costs, size = zip(*(read_all(store, 0, rows) for _ in range(rounds)), strict=True)
            best = min(costs)
            yield f"{name:<18}{rows:>10,} {best:>10.3f} {1 / best:>12.2f} {size[0] / rows / best / 1000:>8.2f}"
        attached.close()
        bench.store.close()


@contextmanager
def broker(readers: int) -> Iterator[tuple[dict[str, int], psutil.Process]]:
    """Run a broker with a number of readers; its ports and its process."""
    with tempfile.TemporaryDirectory(prefix="range-readers-", dir=".") as folder:
        command = [sys.executable, "-m", "lightmq", "broker", "--json", "--controllers", "", "--data", f"{folder}/data"]
        command += ["--remoting-port", "0", "--admin-port", "0", "--readers", str(readers)]
        with Path(folder, "log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline()), psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


def fill(port: int, rows: int) -> None:
    """Write the backlog."""
    with BlockingConnection("127.0.0.1", port) as connection:
        for first in range(0, rows, 2_000):
            entries = [
                image.encode_mqtt_image(b"%s/%d" % (TOPIC.encode(), n % 8), bytes(100), 1, 0, b"bench")
                for n in range(first, first + 2_000)
            ]
            reply = connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(entries)))
            assert reply.code == 0, reply.remark


async def take(port: int, seconds: float) -> list[float]:
    """Send `RATE_PER_S` messages a second in small batches; how long each acknowledgement took, in ms."""
    connection = await connect("127.0.0.1", port)
    entry = image.encode_mqtt_image(b"new/1", bytes(100), 1, 0, b"bench")
    body = b"".join([entry] * ENTRIES_AT_ONCE)
    took: list[float] = []

    async def one() -> None:
        begun = time.perf_counter()
        reply = await connection.request(Command(RequestCode.APPEND_MANY, body=body))
        assert reply.code == 0, reply.remark
        took.append((time.perf_counter() - begun) * 1000)

    begun, sent, tasks = time.perf_counter(), 0, []
    while (now := time.perf_counter() - begun) < seconds:
        while sent < now * RATE_PER_S / ENTRIES_AT_ONCE:
            tasks.append(asyncio.ensure_future(one()))
            sent += 1
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    await connection.close()
    return took


def pull(port: int, use_readers: str) -> None:
    """The reading process: reads the backlog repeatedly until its input ends; prints the number of rows."""
    options = parse_read({"nameServer": f"127.0.0.1:{port}", "topic": TOPIC})
    watch = BoundsWatch(options, select(options))
    work = [QueueRange(key, bounds.id, bounds.min, bounds.max) for key, bounds in watch.read().items()]
    while use_readers == "yes" and not watch.readers:  # they start together with the broker
        time.sleep(0.05)
        watch.read()
    readers = dict(watch.readers) if use_readers == "yes" else {}
    print("ready", flush=True)
    rows, begun = 0, time.perf_counter()
    while sys.stdin.readline() == "go\n":
        for _, pulled in RangeFetcher(work, watch.masters, options, ShortCuts(readers)).pulls():
            rows += pulled.count
        print(json.dumps({"rows": rows, "seconds": time.perf_counter() - begun}), flush=True)


class Puller:
    """A process that reads the backlog while `passes` are asked of it."""

    def __init__(self, port: int, use_readers: bool) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.range_readers",
            "--pull",
            str(port),
            "yes" if use_readers else "no",
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def begin(self, passes: int) -> None:
        """Start so many passes over the backlog, without waiting for them."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n" * passes)
        self._process.stdin.flush()

    def end(self) -> float:
        """Stop; rows per second so far."""
        self._process.kill()
        assert self._process.stdout is not None
        lines = self._process.stdout.read().splitlines()
        self._process.wait()
        read = json.loads(lines[-1]) if lines else {"rows": 0, "seconds": 1.0}
        return float(read["rows"] / read["seconds"])


def situation(name: str, rows: int, seconds: float, *, readers: int, reading: bool) -> str:
    """Take messages for some seconds; the figures as cells."""
    with broker(readers) as (ports, process):
        fill(ports["remoting"], rows)
        puller = Puller(ports["remoting"], readers > 0) if reading else None
        if puller is not None:
            puller.begin(1_000)
        children = process.children()
        before, readers_before = cpu_s([process]), cpu_s(children)
        took = asyncio.run(take(ports["remoting"], seconds))
        used, by_readers = cpu_s([process]) - before, cpu_s(children) - readers_before
        rate = puller.end() if puller is not None else 0.0
    taken = len(took) * ENTRIES_AT_ONCE
    p50, p99 = np.percentile(took, [50, 99])
    cells = f"{taken:>9,} {used / taken * 1e6:>10.1f} {by_readers / taken * 1e6:>10.1f} {p50:>8.2f} {p99:>8.2f}"
    return f"{name:<28}{cells} {max(took):>8.1f} {rate:>12,.0f}"


def cpu_s(processes: list[psutil.Process]) -> float:
    """CPU of these processes so far."""
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def main() -> None:
    """Run the three parts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks range_readers", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="of the writer that is followed")
    parser.add_argument("--rows", type=int, default=400_000, help="of the queue and the backlog that are read")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each situation of the broker")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", nargs="*", default=["follow", "bulk", "broker"])
    parser.add_argument("--pull", nargs=2, metavar=("PORT", "READERS"), help="for the reading process")
    options = parser.parse_args()
    if options.pull:
        pull(int(options.pull[0]), options.pull[1])
        return
    if "follow" in options.parts:
        print(
            f"{'':<34}{'appended':>10} {'read':>10} {'reads':>8} {'retries':>8} {'lag p50':>9} {'p99 ms':>9} {'max':>9}"
        )
        for _ in range(options.rounds):
            print(f"{'one queue of seven, full speed':<34}{follow(options.messages, 0.0, 3)}", flush=True)
            print(f"{'every message, 100 each 2 ms':<34}{follow(options.messages // 10, 0.002, None)}", flush=True)
    if "bulk" in options.parts:
        print(f"{'':<18}{'rows':>10} {'CPU us/row':>10} {'M rows/s/core':>12} {'GB/s':>8}")
        for line in bulk(options.rows, options.rounds):
            print(line, flush=True)
    if "broker" in options.parts:
        heads = f"{'messages':>9} {'us/message':>10} {'in readers':>10} {'ack p50':>8} {'p99 ms':>8} {'max':>8}"
        print(f"{'broker, CPU and latency':<28}{heads} {'rows/s read':>12}")
        for _ in range(options.rounds):
            for name, readers, reading in (
                ("no reader", 0, False), ("read through the broker", 0, True), ("read through 1 reader", 1, True)
            ):  # fmt: skip
                line = situation(name, options.rows, options.seconds, readers=readers, reading=reading)
                print(line, flush=True)


if __name__ == "__main__":
    main()
