"""RocketMQ's requests against a broker process: single sends, batches, many light queues, pulls; its CPU per message.

The work is that of the published figures of RocketMQ's own broker: asynchronous flush, 256-byte bodies, 32 senders with
one request each on the way, batches of 32 (code 320), one message to ten light queues and its parent, pulls of 32. What
is sent is dispatched to every queue in the append itself; nothing builds an index behind it. One line is as RocketMQ's
client sends: all threads by one connection, with keys, tag, property and unique key. The second of two rounds counts.
Server CPU is the kernel's account of the broker's process, client CPU that of this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from remoting.client.connection import connect
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.rocketmq_form import BatchMessage, encode_batch
from remoting.transport.contracts import Connection
from runtime.process import run

BODY = bytes(256)
SENDERS = 32
BATCH = 32
PULL = 32
LIGHT_QUEUES = ",".join(f"%LMQ%light{number}" for number in range(10))
Work = Callable[[Connection, int], Awaitable[int]]


@contextmanager
def broker() -> Iterator[tuple[int, psutil.Process]]:
    """A new broker process with asynchronous flush; its port and itself."""
    with tempfile.TemporaryDirectory(prefix="broker-requests-", dir=".") as folder, started(Path(folder)) as found:
        yield found


@contextmanager
def started(folder: Path, *settings: str) -> Iterator[tuple[int, psutil.Process]]:
    """The broker process on what is in the folder, with asynchronous flush and these settings; its port and itself."""
    command = [sys.executable, "-m", "lightmq", "broker", "--json", "--controllers", "", "--data", f"{folder}/data"]
    command += ["--remoting-port", "0", "--admin-port", "0"]
    for setting in ("broker.store.flush=async", *settings):
        command += ["--set", setting]
    with Path(folder, "log").open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        yield int(json.loads(process.stdout.readline())["remoting"]), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def send(properties: str = "", *, body: bytes = BODY, code: int = RequestCode.SEND_MESSAGE_V2) -> Command:
    """A send to queue 0 as RocketMQ's clients write it."""
    fields = {
        "a": "bench", "b": "requests", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(int(time.time() * 1000)),
        "h": "0", "i": properties, "j": "0", "k": "false", "l": "0", "m": "true" if code != 310 else "false",
    }  # fmt: skip
    return Command(code, fields=fields, body=body)


async def single(connection: Connection, number: int) -> int:
    """One message, one answer."""
    reply = await connection.request(send(f"KEYS\x01{number}\x02"))
    assert reply.code == 0, reply.remark
    return 1


async def from_client(connection: Connection, number: int) -> int:
    """One message with what RocketMQ's client adds."""
    properties = f"KEYS\x01{number}\x02UNIQ_KEY\x017F0000011F9018B4AAC2{number:012X}\x02WAIT\x01true\x02"
    reply = await connection.request(send(f"{properties}TAGS\x01red\x02own\x01value\x02"))
    assert reply.code == 0, reply.remark
    return 1


async def to_light_queues(connection: Connection, number: int) -> int:
    """One message to ten light queues and its parent."""
    reply = await connection.request(send(f"KEYS\x01{number}\x02INNER_MULTI_DISPATCH\x01{LIGHT_QUEUES}\x02"))
    assert reply.code == 0, reply.remark
    return 1


async def batch(connection: Connection, number: int) -> int:
    """32 messages, one answer."""
    body = encode_batch([BatchMessage(BODY, [(b"KEYS", b"%d" % number)])] * BATCH)
    reply = await connection.request(send(body=body, code=RequestCode.SEND_BATCH_MESSAGE))
    assert reply.code == 0, reply.remark
    return BATCH


async def pull(connection: Connection, number: int) -> int:
    """32 messages of queue 0, from a place of its own."""
    fields = {
        "consumerGroup": "bench", "topic": "requests", "queueId": "0", "queueOffset": str(number * PULL),
        "maxMsgNums": str(PULL), "sysFlag": "4", "subscription": "*", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subVersion": "0",
    }  # fmt: skip
    reply = await connection.request(Command(RequestCode.PULL_MESSAGE, fields=fields))
    assert reply.code == 0, reply.remark
    return PULL


async def load(port: int, work: Work, senders: int, requests: int, links: int) -> tuple[int, float]:
    """So many requests by `senders` with one on the way each, over so many connections; (messages, seconds)."""
    connections = [await connect("127.0.0.1", port) for _ in range(links)]
    numbers = iter(range(requests))

    async def sender(connection: Connection) -> int:
        done = 0
        for number in numbers:
            done += await work(connection, number)
        return done

    begun = time.perf_counter()
    messages = sum(await asyncio.gather(*[sender(connections[number % links]) for number in range(senders)]))
    took = time.perf_counter() - begun
    for connection in connections:
        await connection.close()
    return messages, took


def cpu_s(process: psutil.Process) -> float:
    """User and system time so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Print one line per kind of work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000, help="messages per line and round")
    messages = parser.parse_args().messages
    print(f"{'work':<34}{'msg/s':>10}{'broker us/msg':>16}{'client us/msg':>16}")
    with broker() as (port, process):
        for name, work, senders, links, each in (
            ("single sends, 32 senders", single, SENDERS, SENDERS, 1),
            ("16 senders of one client", from_client, 16, 1, 1),
            ("batches of 32 (code 320)", batch, 4, 4, BATCH),
            ("to 10 light queues and parent", to_light_queues, SENDERS, SENDERS, 1),
            ("pulls of 32", pull, 4, 4, PULL),
        ):
            total = messages if each > 1 else messages // 4
            for _ in range(2):
                server, client = cpu_s(process), time.process_time()
                done, took = run(load(port, work, senders, total // each, links))
                server, client = cpu_s(process) - server, time.process_time() - client
            print(
                f"{name:<34}{done / took:>10,.0f}{server / done * 1e6:>16.2f}{client / done * 1e6:>16.2f}", flush=True
            )


if __name__ == "__main__":
    main()
