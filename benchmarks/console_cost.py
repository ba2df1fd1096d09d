"""What the console costs the server that it shows: `python -m benchmarks console [clients] [seconds] [topics]`.

One `lightmq up` as users start it, with so many idle MQTT clients, so many topics that have a retained message each,
and 100 messages a second published. First nobody looks, then three viewers have the event stream, then one of them a
live tail of all messages as well. Printed are the server's CPU in each span, as a share of one core, and the times of
the API's larger lists: of the first answer, and the mean of the next five.
Thread rule: one event loop; the server is another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from remoting.client.connection import connect
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from remoting.protocol.records.record import FLAG_RETAIN

CLIENTS, SECONDS, TOPICS = 10_000, 30, 100_000
TOPICS_A_REQUEST = 1_000
VIEWERS, RATE = 3, 100
TICKS = os.sysconf("SC_CLK_TCK")
LISTS = (
    "/clients?limit=200",
    "/clients?search=c-99&limit=50",
    "/sessions?limit=200",
    "/topics",
    "/topics?parent=site/7&limit=200",
    "/retained?limit=200",
    "/retained?search=9999&limit=50",
    "/queues",
    "/groups",
    "/overview",
)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def connect_packet(name: str) -> bytes:
    """A CONNECT of MQTT 3.1.1 with a clean session and no keep alive."""
    variable = b"\x00\x04MQTT\x04\x02\x00\x00" + len(name).to_bytes(2, "big") + name.encode()
    return bytes((0x10, len(variable))) + variable


def publish_packet(topic: str, payload: bytes) -> bytes:
    """A PUBLISH of QoS 0."""
    variable = len(topic).to_bytes(2, "big") + topic.encode() + payload
    return bytes((0x30, len(variable))) + variable


def signed_in(ports: dict[str, Any]) -> dict[str, str]:
    """The headers of the administrator, whose token is in a file."""
    return {"Authorization": f"Bearer {Path(ports['console_token_file']).read_text().strip()}"}


async def join(port: int, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect one client."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(connect_packet(name))
    await reader.readexactly(4)
    return reader, writer


async def retain(port: int, topics: int) -> None:
    """Store a retained message in each of so many topics."""
    connection = await connect("127.0.0.1", port)
    for begin in range(0, topics, TOPICS_A_REQUEST):
        images = [
            encode_mqtt_image(b"site/%d/sensor/%d" % (n // 1_000, n), b"21.5", 1 | FLAG_RETAIN, 1, b"setup")
            for n in range(begin, min(topics, begin + TOPICS_A_REQUEST))
        ]
        answer = await connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(images)), 60_000)
        assert answer.code == 0, answer.remark
    await connection.close()


async def publish(port: int, counted: list[int]) -> None:
    """Publish `RATE` messages a second."""
    _, writer = await join(port, "publisher")
    while True:
        for number in range(RATE // 10):
            writer.write(publish_packet(f"plant/{number}/temp", b'{"celsius": 21.5}'))
        counted[0] += RATE // 10
        await asyncio.sleep(0.1)


async def view(http: aiohttp.ClientSession, counted: list[int]) -> None:
    """Read the event stream."""
    async with http.get("/api/v1/events") as answer:
        async for line in answer.content:
            counted[0] += line.startswith(b"event: overview")


async def tail(http: aiohttp.ClientSession, url: str, counted: list[int]) -> None:
    """Read a live tail of all messages."""
    async with http.ws_connect("/api/v1/live", headers={"Origin": url}) as socket:
        await socket.send_json({"subscribe": "#"})
        async for message in socket:
            counted[0] += b'"message"' in message.data.encode()


async def listed(http: aiohttp.ClientSession, path: str, pid: int) -> None:
    """Ask for a list, and print what that took."""
    times_ms = []
    before = cpu_s(pid)
    for number in range(6):
        began = time.monotonic()
        async with http.get(f"/api/v1{path}") as answer:
            size = len(await answer.read())
        times_ms.append((time.monotonic() - began) * 1_000)
        if number == 0:
            first_ms, before = (cpu_s(pid) - before) * 1_000, cpu_s(pid)
    cpu_ms = (cpu_s(pid) - before) / 5 * 1_000
    mean_ms = sum(times_ms[1:]) / 5
    print(
        f"{path}: {answer.status}, {size} bytes, first {times_ms[0]:.0f} ms ({first_ms:.0f} ms CPU), "
        f"then {mean_ms:.1f} ms ({cpu_ms:.0f} ms CPU)"
    )


async def share(pid: int, seconds: float) -> float:
    """The server's CPU in a span of time, in percent of a core."""
    before, began = cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - began) * 100


async def measure(folder: Path, clients: int, seconds: float, topics: int) -> None:
    """Start, connect, look, print."""
    command = [sys.executable, "-m", "lightmq", "up", "--data", str(folder), "--json", "--mqtt-port", "0",
               "--remoting-port", "0", "--admin-port", "0", "--log-level", "error"]  # fmt: skip
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    ports = json.loads(await server.stdout.readline())
    tasks: list[asyncio.Task[None]] = []
    try:
        await retain(ports["remoting"], topics)
        held = []
        for begin in range(0, clients, 200):
            held += await asyncio.gather(
                *(join(ports["mqtt"], f"c-{n}") for n in range(begin, min(clients, begin + 200)))
            )
        url = f"http://127.0.0.1:{ports['admin']}"
        async with aiohttp.ClientSession(url, headers=signed_in(ports)) as http:
            published, seen, shown = [0], [0], [0]
            tasks.append(asyncio.ensure_future(publish(ports["mqtt"], published)))
            await asyncio.sleep(5)
            alone = await share(server.pid, seconds)
            tasks += [asyncio.ensure_future(view(http, seen)) for _ in range(VIEWERS)]
            await asyncio.sleep(3)
            watched = await share(server.pid, seconds)
            tasks.append(asyncio.ensure_future(tail(http, url, shown)))
            await asyncio.sleep(3)
            counts, both = (published[0], shown[0]), await share(server.pid, seconds)
            rate = (shown[0] - counts[1]) / max(1, published[0] - counts[0]) * RATE
            print(f"{len(held)} clients, {topics} topics, {RATE} messages/s: {alone:.2f} % of a core without viewers")
            print(f"{VIEWERS} viewers: {watched:.2f} %, so {watched - alone:.2f} % for the page; {seen[0]} events")
            print(f"and a live tail ({rate:.0f} messages/s shown): {both:.2f} %, so {both - alone:.2f} % for all of it")
            for path in LISTS:
                await listed(http, path, server.pid)
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        server.terminate()
        await server.wait()


def main(arguments: list[str]) -> None:
    """Measure with the given numbers of clients, of seconds for each span, and of topics."""
    clients = int(arguments[0]) if arguments else CLIENTS
    seconds = float(arguments[1]) if arguments[1:] else SECONDS
    topics = int(arguments[2]) if arguments[2:] else TOPICS
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), clients, seconds, topics))


if __name__ == "__main__":
    main(sys.argv[1:])
