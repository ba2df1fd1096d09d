"""What histograms and traces cost a message: `python -m benchmarks telemetry [--rounds 12] [--seconds 1.0]`.

Four servers run side by side, each `lightmq up` as users start it but for one thing, and are put under the same load in
turn, in a different order each round, so that whatever else the machine does meets all of them:

    plain       as shipped
    bare        no histogram counts anything
    traced      traces are sent to a receiver, no message has a context
    sampled     the same, and one message in a hundred has a sampled context

A load is MQTT 5 publishes of 100 bytes with QoS 1, delivered to one subscriber: `lone`, one at a time, which pays
for a histogram alone, and `batched`, eight publishers with 16 messages each under way. Printed is the server's CPU per
message, the median of the rounds, and the median of the differences to `plain` of the same round. Thread rule: one
event loop; servers are other processes, the receiver a thread.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.cpu_clocks import process_cpu_s

PROGRAM = "import sys; {change}; from lightmq.__main__ import main; sys.exit(main())"
NO_HISTOGRAMS = (
    "from runtime.metrics import Histogram; Histogram.observe = lambda *_: None; Histogram.add = lambda *_: None"
)
CONTEXT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SAMPLED_EVERY = 100
LOADS = {"lone": (1, 1), "batched": (8, 16)}
"""(publishers, messages of each under way)."""


class Receiver(BaseHTTPRequestHandler):
    """Takes all spans and keeps none."""

    def do_POST(self) -> None:
        """Answer as a collector does."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *_args: object) -> None:  # noqa: A002 - the base's own name
        """Keep quiet."""


@contextmanager
def server(change: str, *settings: str) -> Iterator[tuple[int, int]]:
    """(process id, MQTT port) of a server with these settings; `change` runs before it starts."""
    with tempfile.TemporaryDirectory(prefix="lightmq-telemetry-") as folder:
        options = ["up", "--json", "--data", folder, "--mqtt-port", "0", "--remoting-port", "0", "--admin-port", "0"]
        chosen = [word for setting in settings for word in ("--set", setting)]
        command = [sys.executable, "-c", PROGRAM.format(change=change), *options, *chosen]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert child.stdout is not None
        try:
            yield child.pid, json.loads(child.stdout.readline())["mqtt"]
        finally:
            child.terminate()
            child.wait(20)


def text(value: bytes) -> bytes:
    """A string as MQTT has it."""
    return len(value).to_bytes(2, "big") + value


def packet(first: int, body: bytes) -> bytes:
    """A packet of at most 16 KB."""
    size = len(body)
    return bytes((first, size)) + body if size < 128 else bytes((first, size % 128 | 128, size // 128)) + body


def publish(number: int, context: bytes) -> bytes:
    """A PUBLISH of QoS 1."""
    properties = b"&" + text(b"traceparent") + text(context) if context else b""
    body = text(b"plant/7/temp") + (number % 60_000 + 1).to_bytes(2, "big") + bytes((len(properties),)) + properties
    return packet(0x32, body + bytes(100))


async def client(port: int, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connected client of MQTT 5."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(packet(0x10, text(b"MQTT") + b"\x05\x02\x00\x00\x00" + text(name.encode())))
    _first, size = await reader.readexactly(2)
    await reader.readexactly(size)
    return reader, writer


async def publish_for(port: int, name: str, window: int, seconds: float, *, is_sampled: bool) -> int:
    """Publish windows of messages, each when the one before is acknowledged; returns how many."""
    reader, writer = await client(port, name)
    loop = asyncio.get_running_loop()
    end_s, sent = loop.time() + seconds, 0
    while loop.time() < end_s:
        numbers = range(sent, sent + window)
        writer.write(
            b"".join([publish(one, CONTEXT if is_sampled and one % SAMPLED_EVERY == 0 else b"") for one in numbers])
        )
        await reader.readexactly(4 * window)
        sent += window
    writer.close()
    return sent


async def discard(reader: asyncio.StreamReader) -> None:
    """Read what a subscriber is sent."""
    while await reader.read(1 << 16):
        pass


async def measure(process: int, port: int, load: str, seconds: float, *, is_sampled: bool) -> float:
    """CPU of a server in µs per message under a load."""
    publishers, window = LOADS[load]
    reader, writer = await client(port, "reader")
    writer.write(packet(0x82, b"\x00\x01\x00" + text(b"plant/#") + b"\x00"))
    await reader.readexactly(6)
    reading = asyncio.create_task(discard(reader))
    before_s = process_cpu_s(process)
    each = [publish_for(port, f"p{n}", window, seconds, is_sampled=is_sampled) for n in range(publishers)]
    sent = sum(await asyncio.gather(*each))
    used_s = process_cpu_s(process) - before_s
    writer.close()
    await reading
    return used_s / sent * 1e6


def show(load: str, found: dict[str, list[float]]) -> None:
    """Print a line for each server."""
    for name, values in found.items():
        more = statistics.median([one - plain for one, plain in zip(values, found["plain"], strict=True)])
        share = more / statistics.median(found["plain"])
        print(
            f"{load:<8} {name:<8} {statistics.median(values):6.2f} µs/message  {more:+.2f} µs ({share:+.1%})",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks telemetry", description="the price of telemetry")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args(arguments)
    receiver = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    receiver.daemon_threads = True
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    endpoint = f"tracing.endpoint=http://127.0.0.1:{receiver.server_port}"
    chance = random.Random(1)
    with ExitStack() as stack:
        servers = {
            "plain": stack.enter_context(server("0")),
            "bare": stack.enter_context(server(NO_HISTOGRAMS)),
            "traced": stack.enter_context(server("0", endpoint)),
            "sampled": stack.enter_context(server("0", endpoint)),
        }
        for load in LOADS:
            found: dict[str, list[float]] = {name: [] for name in servers}
            for number in range(options.rounds + 1):
                for name in chance.sample(list(servers), len(servers)):
                    process, port = servers[name]
                    used = measure(process, port, load, options.seconds, is_sampled=name == "sampled")
                    value = asyncio.run(used)
                    if number:  # the first round warms up
                        found[name].append(value)
            show(load, found)
    receiver.shutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
