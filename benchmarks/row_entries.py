"""What a row from Spark's sink costs the broker: APPEND_MANY and STAGE with COMMIT_BATCH, in this process.

Bodies of 2,000 entries for a RocketMQ topic of four queues: the broker picks the queue, or every entry names one, as
those of rows with a key do; with a body alone, and with key, tag and three properties. No sockets are involved; the log
is on disk, flushed asynchronously. CPU of all threads per row, best and median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from broker.broker import BrokerParts
from broker.config import BrokerConfig
from broker.router import handlers
from broker.store.log_store import LogStore
from broker.store.settings import StoreSettings
from remoting import inprocess
from remoting.client.connection import Connection
from remoting.native import core as native
from remoting.protocol.bodies.sink_body import CommitBatch, StageHandle, encode
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import QUEUE_INDEX_ANY, encode_image
from remoting.server.router import Router
from runtime.clock import SystemClock
from runtime.faults import FaultPoints
from runtime.metrics import Registry
from runtime.process import settle_garbage

ROWS, QUEUES, REQUESTS = 2_000, 4, 10
PROPERTIES = ((b"unit", b"celsius"), (b"site", b"plant-7"), (b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-01"))
Round = Callable[[Connection, bytes, int], Awaitable[None]]


def body_of(*, has_queue: bool, is_full: bool) -> bytes:
    """A request's body."""
    return b"".join(
        [
            encode_image(
                flags=0, queue_index=row * 7 % QUEUES if has_queue else QUEUE_INDEX_ANY,
                born_ms=1_769_853_600_000, topic=b"orders", keys=b"device-%04d" % (row % 100) if is_full else b"",
                tags=b"reading" if is_full else b"", properties=PROPERTIES if is_full else (), body=b"x" * 100,
            )
            for row in range(ROWS)
        ]
    )  # fmt: skip


async def ask(connection: Connection, code: int, body: bytes, fields: dict[str, str]) -> None:
    """A request that must succeed."""
    reply = await connection.request(Command(code, fields=fields, body=body))
    assert reply.code == 0, reply.remark


async def append(connection: Connection, body: bytes, _batch: int) -> None:
    """At least once."""
    for _ in range(REQUESTS):
        await ask(connection, RequestCode.APPEND_MANY, body, {})


async def stage(connection: Connection, body: bytes, batch: int) -> None:
    """Exactly once."""
    fields = {"sink": f"s{len(body)}", "batch": str(batch), "partition": "0", "attempt": "0"}
    for _ in range(REQUESTS):
        await ask(connection, RequestCode.STAGE, body, fields)
    commit = CommitBatch(fields["sink"], batch, [StageHandle(0, 0, REQUESTS * ROWS)])
    await ask(connection, RequestCode.COMMIT_BATCH, encode(commit), {})


async def measure(directory: Path, rounds: int) -> None:
    """Print one line per kind of row and way of sending."""
    loop = asyncio.get_running_loop()

    def schedule(function: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(function)

    store = LogStore.open(
        directory, StoreSettings(), clock=SystemClock(), faults=FaultPoints(),
        schedule=schedule, log=structlog.get_logger(),
    )  # fmt: skip
    config = BrokerConfig(data_directory=directory, controllers=())
    broker = BrokerParts(config, store, SystemClock(), Registry(), structlog.get_logger())
    broker.topics.table.ensure("orders", QUEUES)
    connection = inprocess.connect(Router(handlers(broker)))
    settle_garbage()
    batch = 0
    rows: tuple[tuple[str, Round], ...] = (("at least once", append), ("exactly once", stage))
    for what, is_full in (("body alone", False), ("key, tag, 3 properties", True)):
        for name, send in rows:
            for whose, has_queue in (("picked by the broker", False), ("named", True)):
                body, took = body_of(has_queue=has_queue, is_full=is_full), []
                for _ in range(rounds):
                    batch += 1
                    begun = time.process_time_ns()
                    await send(connection, body, batch)
                    took.append((time.process_time_ns() - begun) / (REQUESTS * ROWS) / 1000)
                best, median = min(took), statistics.median(took)
                print(f"{what:24} {name:14} queue {whose:21} {best:6.2f} {median:6.2f} µs/row", flush=True)
    store.close()


def main() -> None:
    """Measure in a directory of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    print(f"rows by the {native.choice.name} twin; best and median of {arguments.rounds} rounds")
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(Path(directory), arguments.rounds))


if __name__ == "__main__":
    main()
