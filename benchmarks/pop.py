"""POP: CPU of a broker process per message popped and acknowledged, and memory for a million messages in flight.

    pop 32, pop 1       requests for that many messages, 32 on the way; CPU per message
    ack                 one request for each message, 32 on the way
    ack 32              one batch acknowledgement for the 32 messages of a pop

    together            memory of messages that were popped 32 at a time
    one by one          memory of messages that were popped one at a time
    left over           memory of messages of which the 31 others of each pop were acknowledged

The broker's log is flushed asynchronously; bodies of 100 bytes. Server CPU is the kernel's account of the broker's
process. Memory is the growth of a process that has only the table over a log (its private pages), and what of it the
table's arrays take. Nothing here is gated on time.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine

import psutil

from benchmarks.broker_requests import BATCH, SENDERS, broker, cpu_s, send
from benchmarks.stores import MIB, store_bench
from broker.pop.in_flight import MessagesInFlight
from remoting.client.connection import connect
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.rocketmq_form import BatchMessage, encode_batch
from remoting.protocol.records.stored_message import iter_stored
from remoting.transport.contracts import Connection
from runtime.process import run

BODY = bytes(100)
GROUP, TOPIC = "bench", "requests"
PATTERNS = "together", "one by one", "left over"
Popped = tuple[Command, list[int]]
"""The answer to a pop, and the offsets in it."""


def popping(count: int) -> Command:
    """A pop from queue 0."""
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "maxMsgNums": str(count), "pollTime": "0",
              "invisibleTime": "3600000", "bornTime": "0", "initMode": "0"}  # fmt: skip
    return Command(RequestCode.POP_MESSAGE, fields=fields)


def acknowledging(answer: Command, offset: int) -> Command:
    """The acknowledgement of one message of an answer."""
    handle = f"{offset} {answer.fields['popTime']} {answer.fields['invisibleTime']} 0 0 broker-a 0 {offset}"
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "offset": str(offset), "extraInfo": handle}
    return Command(RequestCode.ACK_MESSAGE, fields=fields)


def acknowledging_all(answer: Command, offsets: list[int]) -> Command:
    """The acknowledgement of all messages of an answer."""
    bits = sum(1 << (offset - offsets[0]) for offset in offsets)
    ack = {
        "c": GROUP, "t": TOPIC, "r": "0", "so": offsets[0], "q": 0, "rq": 0, "pt": int(answer.fields["popTime"]),
        "it": int(answer.fields["invisibleTime"]), "b": base64.b64encode(bits.to_bytes(8, "little")).decode(),
    }  # fmt: skip
    body = json.dumps({"brokerName": "broker-a", "acks": [ack]}).encode()
    return Command(RequestCode.BATCH_ACK_MESSAGE, body=body)


async def together(works: list[Callable[[], Coroutine[None, None, None]]]) -> None:
    """Run these, `SENDERS` at a time."""

    async def some(first: int) -> None:
        for work in works[first::SENDERS]:
            await work()

    await asyncio.gather(*(some(first) for first in range(SENDERS)))


async def pops(connection: Connection, count: int, each: int) -> list[Popped]:
    """Pop `count` messages, `each` at a time."""
    found: list[Popped] = []

    async def one() -> None:
        answer = await connection.request(popping(each))
        assert answer.code == 0, answer.remark
        found.append((answer, [stored.queue_offset for stored in iter_stored(answer.body)]))

    await together([one] * (count // each))
    return found


async def acknowledge(connection: Connection, commands: list[Command]) -> None:
    """Send acknowledgements."""

    def work(command: Command) -> Callable[[], Coroutine[None, None, None]]:
        async def one() -> None:
            answer = await connection.request(command)
            assert answer.code == 0, answer.remark

        return one

    await together([work(command) for command in commands])


async def cost(
    server: psutil.Process, name: str, count: int, work: Coroutine[None, None, list[Popped]]
) -> list[Popped]:
    """Run it and print the server's CPU per message."""
    before = cpu_s(server)
    found = await work
    print(f"{name:12}{(cpu_s(server) - before) / count * 1e6:8.1f} us/message", flush=True)
    return found


async def requests(count: int) -> None:
    """Print the costs of requests."""
    with broker() as (port, server):
        connection = await connect("127.0.0.1", port)
        body = encode_batch([BatchMessage(BODY, [])] * BATCH)
        for _ in range(2 * count // BATCH):
            await connection.request(send(body=body, code=RequestCode.SEND_BATCH_MESSAGE))

        async def acks(popped: list[Popped]) -> list[Popped]:
            await acknowledge(connection, [acknowledging(answer, at) for answer, found in popped for at in found])
            return []

        async def batches(popped: list[Popped]) -> list[Popped]:
            await acknowledge(connection, [acknowledging_all(answer, found) for answer, found in popped])
            return []

        popped = await cost(server, "pop 32", count, pops(connection, count, BATCH))
        await cost(server, "ack 32", count, batches(popped))
        popped = await cost(server, "pop 1", count, pops(connection, count, 1))
        await cost(server, "ack", count, acks(popped))
        await connection.close()


def memory(pattern: str, count: int) -> None:
    """Print what a message in flight costs."""
    with store_bench(1, segment_size_bytes=256 * MIB, flush="async") as bench:
        points = MessagesInFlight(bench.store)
        each = 1 if pattern == "one by one" else BATCH
        pops_count = count if pattern == "left over" else count // each
        gc.collect()
        before = psutil.Process().memory_info()
        for number in range(pops_count):
            offsets = range(number * each, (number + 1) * each)
            points.write(points.table.give(GROUP, 0, offsets, (1_700_000_000_000 + number, 60_000)))
            if pattern == "left over":
                points.write(points.table.release(GROUP, 0, offsets[1:]))
            if number % 1_000 == 0:
                bench.settle()
        bench.settle()
        gc.collect()
        after = psutil.Process().memory_info()
        grown = (after.rss - after.shared) - (before.rss - before.shared)
        pages = bench.store.state.check_points.freeze().pages
        arrays = sum(sys.getsizeof(column) for _owner, columns in pages for column in columns)
        figures = f"{grown / len(points):8.1f} bytes/message, {arrays / len(points):.1f} of them in arrays"
        print(f"{pattern:12}{figures}; {len(points)} in flight", flush=True)


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=64_000, help="messages popped and acknowledged")
    parser.add_argument("--in-flight", type=int, default=1_000_000, help="messages in flight for the figures of memory")
    parser.add_argument("--pattern", choices=PATTERNS, help="only the memory of one pattern, in this process")
    options = parser.parse_args()
    if options.pattern:
        memory(options.pattern, options.in_flight)
        return
    run(requests(options.messages))
    for pattern in PATTERNS:
        argv = [sys.executable, "-m", "benchmarks.pop", "--pattern", pattern, "--in-flight", str(options.in_flight)]
        subprocess.run(argv, check=True)


if __name__ == "__main__":
    main()
