"""Calls of gRPC clients against a proxy process and a broker process: CPU of both per message.

Single sends of 256 bytes with 32 on their way, 32 messages in one call, receives of 32 with an acknowledgement of all
of them in one call. The client sends and reads bytes that are made before, so that its own cost is that of gRPC. The
second of two rounds counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
import psutil

from benchmarks.broker_requests import BODY, SENDERS, broker, cpu_s, load, single
from grpc_proxy.service import NAME
from grpc_proxy.stubs import definition as d
from grpc_proxy.stubs import service as s
from runtime.process import run

BATCH = 32
METADATA = (("x-mq-client-id", "bench"),)
TOPIC, GROUP = d.Resource(name="requests"), d.Resource(name="bench")
Work = Callable[[Any], Awaitable[int]]


@contextmanager
def proxy(broker_port: int) -> Iterator[tuple[int, psutil.Process]]:
    """A proxy process before this broker; its port and itself."""
    command = [sys.executable, "-m", "lightmq", "grpc-proxy", "--json", "--broker", f"127.0.0.1:{broker_port}"]
    command += ["--grpc-port", "0", "--admin-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield int(json.loads(process.stdout.readline())["grpc"]), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def sending(count: int) -> bytes:
    """A SendMessage with so many messages."""
    system = {"message_id": "01" * 16, "message_type": d.MessageType.NORMAL, "body_encoding": d.Encoding.IDENTITY}
    message = d.Message(topic=TOPIC, body=BODY, system_properties=system)
    return bytes(s.SendMessageRequest(messages=[message] * count).SerializeToString())


RECEIVE = s.ReceiveMessageRequest(
    group=GROUP, message_queue={"topic": TOPIC, "id": -1}, batch_size=BATCH, invisible_duration={"seconds": 600},
    long_polling_timeout={"seconds": 0},
).SerializeToString()  # fmt: skip


def sends(count: int) -> Work:
    """Messages of one call."""
    raw = sending(count)

    async def work(channel: Any) -> int:
        await channel.unary_unary(f"/{NAME}/SendMessage")(raw, metadata=METADATA)
        return count

    return work


async def receive(channel: Any) -> int:
    """A receive, and one acknowledgement of what it brought."""
    entries = []
    async for raw in channel.unary_stream(f"/{NAME}/ReceiveMessage")(RECEIVE, metadata=METADATA):
        answer = s.ReceiveMessageResponse.FromString(raw)
        if answer.HasField("message"):
            entries.append({"message_id": "m", "receipt_handle": answer.message.system_properties.receipt_handle})
    if entries:
        request = s.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries)
        await channel.unary_unary(f"/{NAME}/AckMessage")(request.SerializeToString(), metadata=METADATA)
    return len(entries)


async def calls(port: int, work: Work, senders: int, count: int) -> tuple[int, float]:
    """So many calls, by `senders` at a time on one connection; (messages, seconds)."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        numbers = iter(range(count))

        async def sender() -> int:
            return sum([await work(channel) for _ in numbers])

        begun = time.perf_counter()
        messages = sum(await asyncio.gather(*[sender() for _ in range(senders)]))
        return messages, time.perf_counter() - begun


def main() -> None:
    """Print one line per kind of work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=20_000, help="messages per line and round")
    messages = parser.parse_args().messages
    print(f"{'work':<34}{'msg/s':>10}{'proxy us/msg':>16}{'broker us/msg':>16}{'client us/msg':>16}")
    with broker() as (broker_port, broker_process):
        run(load(broker_port, single, 1, 1))  # makes the topic
        with proxy(broker_port) as (port, proxy_process):
            for name, work, senders, each in (
                ("single sends, 32 on their way", sends(1), SENDERS, 1),
                ("sends of 32", sends(BATCH), 4, BATCH),
                ("receives of 32, acknowledged", receive, 4, BATCH),
            ):
                for _ in range(2):
                    before = cpu_s(proxy_process), cpu_s(broker_process), time.process_time()
                    done, took = run(calls(port, work, senders, messages // each))
                    after = cpu_s(proxy_process), cpu_s(broker_process), time.process_time()
                used = [(end - begun) / done * 1e6 for begun, end in zip(before, after, strict=True)]
                print(f"{name:<34}{done / took:>10,.0f}" + "".join(f"{one:>16.1f}" for one in used), flush=True)


if __name__ == "__main__":
    main()
