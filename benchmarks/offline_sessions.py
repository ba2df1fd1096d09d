"""Cost of many sessions on one filter that are offline, or do not read: memory, and delivery on their return.

    python -m benchmarks sessions [--offline N] [--queued N] [--slow N] [--busy N]     10,000, 100,000, 1,000, 4,000

Offline: persistent sessions subscribe and disconnect, messages are published once while the server's memory is sampled;
then one session reconnects and reads everything, and further ones follow while a pair of other clients is timed. Slow:
connected sessions, half with QoS 0 and half with QoS 1; half of them read nothing and half a few messages at a time,
each at a different position, beside a pair on the same filter; then all read to the end. Every session must receive
each number once, in order.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import selectors
import socket
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.connections import Server
from benchmarks.session_clients import (
    DEADLINE_S,
    SMALL_RECEIVE_BYTES,
    Layout,
    Pair,
    Publisher,
    Reader,
    connect,
    disconnect,
    quantiles,
    subscribe,
)

AWAY = Layout(b"bench/away", 120)
LIVE = Layout(b"bench/live", 120)
BUSY = Layout(b"bench/busy", 1_000)
STEPS = 5
BATCH = 1_000
ALONE_S = 4.0
BACK = 40
MIB = 1 << 20


class Growth:
    """Growth of a server's anonymous memory, step by step."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._first = self._last = server.anonymous_bytes()

    def step(self) -> str:
        """Growth since the last step."""
        before, self._last = self._last, self._server.anonymous_bytes()
        return f"{(self._last - before) / MIB:+.1f}"

    def __str__(self) -> str:
        self._last = self._server.anonymous_bytes()
        return f"{(self._last - self._first) / MIB:+.1f} to {self._last / MIB:.0f}"


def away(server: Server, sessions: int, queued: int) -> None:
    """Sessions that are offline, and one that reconnects."""
    port = server.ports["mqtt"]
    growth, cpu_s = Growth(server), server.cpu_s()
    for number in range(sessions):
        sock, _ = connect(port, f"away-{number}", clean=False)
        subscribe(sock, b"bench/away/#", 1)
        disconnect(sock)
    print(f"{sessions} sessions subscribed and left: {growth} MiB, {cpu(server, cpu_s, sessions)} each", flush=True)
    publisher = Publisher(port, "queueing", AWAY)
    growth, cpu_s, begin = Growth(server), server.cpu_s(), time.monotonic()
    steps = []
    for step in range(STEPS):
        while publisher.count < queued * (step + 1) // STEPS:
            publisher.send(min(BATCH, queued * (step + 1) // STEPS - publisher.count))
        steps.append(growth.step())
    print(
        f"{queued} messages stored once: {growth} MiB (fifths: {' '.join(steps)}), "
        f"{queued / (time.monotonic() - begin):.0f} messages/s, {cpu(server, cpu_s, queued)} each"
    )
    pair = Pair(port, "live", LIVE, burst=1, interval_s=0.005)
    try:
        time.sleep(ALONE_S)
        print(f"a live pair, 200 messages/s: {quantiles(pair.latencies_ms())}", flush=True)
        come_back(server, [0], queued)
        pair.latencies_ms()
        come_back(server, list(range(1, sessions, max(1, sessions // BACK))), queued)
        print(f"    the pair during that time: {quantiles(pair.latencies_ms())}", flush=True)
        pair.end()
    finally:
        pair.kill()


def come_back(server: Server, numbers: list[int], queued: int) -> None:
    """Sessions, one after the other, read everything stored while they were offline."""
    growth, cpu_s, begin = Growth(server), server.cpu_s(), time.monotonic()
    missed = repeated = 0
    for number in numbers:
        sock, present = connect(server.ports["mqtt"], f"away-{number}", clean=False)
        reader = Reader(sock, AWAY, 1)
        while reader.following < queued:
            reader.read()
        missed, repeated = missed + reader.missed + (not present), repeated + reader.repeated
        disconnect(sock)
    total = queued * len(numbers)
    print(
        f"{len(numbers)} came back in turn: {total / (time.monotonic() - begin):.0f} messages/s, "
        f"{cpu(server, cpu_s, total)} each, memory {growth} MiB; missing {missed}, twice {repeated}"
    )
    if missed or repeated:
        sys.exit("a session lost or repeated something")


def slow(server: Server, sessions: int, busy: int) -> None:
    """Sessions that hardly read, and finally read everything."""
    port = server.ports["mqtt"]
    pair = Pair(port, "alone", BUSY, burst=5, interval_s=0.01)
    time.sleep(ALONE_S)
    print(f"a pair, 500 messages/s offered, alone: {quantiles(pair.latencies_ms())}", flush=True)
    pair.end()
    growth = Growth(server)
    readers: list[Reader] = []
    for number in range(sessions):
        sock, _ = connect(port, f"slow-{number}", clean=True, receive_bytes=SMALL_RECEIVE_BYTES)
        subscribe(sock, b"bench/busy/#", number % 2)
        sock.setblocking(False)
        readers.append(Reader(sock, BUSY, number % 2))
    print(f"{sessions} slow sessions on its filter: {growth} MiB", flush=True)
    growth = Growth(server)
    pair = Pair(port, "busy", BUSY, burst=5, interval_s=0.01)
    try:
        total = 0
        while total < busy:
            read_a_little(readers)
            latencies = pair.latencies_ms()
            total += len(latencies)
            print(f"    after {total} messages: {growth.step()} MiB, the pair {quantiles(latencies)}", flush=True)
        count = pair.end()
    finally:
        pair.kill()
    behind = sorted(count - reader.following for reader in readers)
    print(f"all {count}: {growth} MiB; behind at least {behind[0]}, at most {behind[-1]}", flush=True)
    drain(server, readers, count)


def read_a_little(readers: list[Reader]) -> None:
    """For a second, every second pair of sessions reads a few messages, each another number of them."""
    ends = time.monotonic() + 1
    for number, reader in enumerate(readers):
        if number % 4 >= 2:
            with contextlib.suppress(BlockingIOError):
                for _ in range(number % 61):
                    reader.read(SMALL_RECEIVE_BYTES)
    time.sleep(max(0.0, ends - time.monotonic()))


def drain(server: Server, readers: list[Reader], count: int) -> None:
    """All read to the end, as fast as they can."""
    growth, cpu_s, begin = Growth(server), server.cpu_s(), time.monotonic()
    left = sum(count - reader.following for reader in readers)
    highest = now = server.anonymous_bytes()
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            reader.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            selector.register(reader.sock, selectors.EVENT_READ, reader)
        while selector.get_map():
            events = selector.select(DEADLINE_S)
            if not events:
                sys.exit(f"{len(selector.get_map())} sessions got nothing more")
            for key, _ in events:
                key.data.read()
                if key.data.following >= count:
                    selector.unregister(key.fileobj)
            now = server.anonymous_bytes()
            highest = max(highest, now)
    took_s = time.monotonic() - begin
    missed, repeated = sum(reader.missed for reader in readers), sum(reader.repeated for reader in readers)
    print(
        f"read to the end: {left} messages, {left / took_s:.0f} messages/s, {cpu(server, cpu_s, left)} each, memory "
        f"{growth} MiB, at most {highest / MIB:.0f}; missing {missed}, twice {repeated}"
    )
    if missed or repeated:
        sys.exit("a session lost or repeated something")


def cpu(server: Server, before_s: float, count: int) -> str:
    """CPU of the server per item since then."""
    return f"{(server.cpu_s() - before_s) / count * 1e6:.2f} µs CPU"


def main() -> None:
    """Each with a server of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--offline", type=int, default=10_000)
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--slow", type=int, default=1_000)
    parser.add_argument("--busy", type=int, default=4_000)
    wanted = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as name:
        for title, measure, sessions, messages in (
            ("away", away, wanted.offline, wanted.queued),
            ("slow", slow, wanted.slow, wanted.busy),
        ):
            if sessions:
                server = Server(Path(name) / title)
                try:
                    measure(server, sessions, messages)
                finally:
                    server.stop()


if __name__ == "__main__":
    main()
