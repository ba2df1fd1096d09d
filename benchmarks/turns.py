"""How long one client's large requests keep the others waiting: latencies of a pair of other clients meanwhile.

    python -m benchmarks turns [--retained N] [--filters N]     300,000, 10,000

The pair sends a message of QoS 1 every 5 ms from a process of its own. Beside it one client subscribes to `#` over all
retained messages, with QoS 0 and 1; another has a durable session of many exact filters, a hundred to a SUBSCRIBE,
leaves, comes back, unsubscribes from all with a few large packets, and ends; a third does the same with wildcard
filters, as many as a session may have.
"""

from __future__ import annotations

import argparse
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.connections import Server
from benchmarks.session_clients import Layout, Pair, connect, disconnect, subscribe

LIVE = Layout(b"bench/live", 120)
ALONE_S = 5.0
PER_PACKET = 100
UNSUBSCRIBED = 4_000
"""Filters in one UNSUBSCRIBE: about as many as a packet may have."""
WILDCARDS = 2_000
BATCH = 1_000


def packet(first: int, body: bytes) -> bytes:
    """A packet with its remaining length."""
    length, rest = b"", len(body)
    while True:
        length += bytes([rest & 127 | (128 if rest > 127 else 0)])
        rest >>= 7
        if not rest:
            return bytes([first]) + length + body


class Packets:
    """The packets that come, one by one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = b""
        self._at = 0

    def next(self) -> tuple[int, bytes]:
        """First byte and body."""
        while True:
            found = self._whole()
            if found is not None:
                return found
            piece = self._sock.recv(262_144)
            assert piece, "the server closed a connection"
            self._data, self._at = self._data[self._at :] + piece, 0

    def _whole(self) -> tuple[int, bytes] | None:
        size, shift, at = 0, 0, self._at + 1
        while at < len(self._data):
            byte = self._data[at]
            size, shift, at = size | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                if at + size > len(self._data):
                    return None
                first, self._at = self._data[self._at], at + size
                return first, self._data[at : at + size]
        return None

    def until(self, first: int) -> bytes:
        """The body of the next packet of this kind."""
        while True:
            found, body = self.next()
            if found == first:
                return body


def retain(port: int, count: int) -> None:
    """Store retained messages under topics of three levels."""
    sock, _ = connect(port, "retaining", clean=True)
    packets = Packets(sock)
    for start in range(0, count, BATCH):
        batch = range(start, min(count, start + BATCH))
        for number in batch:
            topic = b"plant/%d/value" % number
            sock.sendall(
                packet(0x33, struct.pack(">H", len(topic)) + topic + struct.pack(">H", number - start + 1) + b"x" * 50)
            )
        for _ in batch:
            packets.until(0x40)
    disconnect(sock)


def take_retained(port: int, count: int, qos: int) -> None:
    """Subscribe to `#` and read everything."""
    sock, _ = connect(port, f"all-{qos}", clean=True)
    packets = Packets(sock)
    sock.sendall(packet(0x82, b"\0\1\0\1#" + bytes([qos])))
    got = 0
    while got < count:
        first, body = packets.next()
        if first & 0xF1 == 0x31:
            got += 1
            if first & 6:
                at = 2 + struct.unpack_from(">H", body)[0]
                sock.sendall(b"\x40\x02" + body[at : at + 2])
    disconnect(sock)


def filters_of(count: int, tail: bytes) -> list[bytes]:
    """Filters as they stand in a packet, without QoS."""
    names = [b"fleet/%d%s" % (number, tail) for number in range(count)]
    return [struct.pack(">H", len(name)) + name for name in names]


def phases(port: int, name: str, filters: list[bytes]) -> list[tuple[str, Callable[[], None]]]:
    """The life of a durable session."""

    def first() -> None:
        sock, _ = connect(port, name, clean=False)
        packets = Packets(sock)
        for start in range(0, len(filters), PER_PACKET):
            wanted = b"".join(one + b"\1" for one in filters[start : start + PER_PACKET])
            sock.sendall(packet(0x82, b"\0\1" + wanted))
            assert 0x80 not in packets.until(0x90)[2:]
        disconnect(sock)

    def resume() -> None:
        sock, present = connect(port, name, clean=False)
        assert present
        subscribe(sock, filters[0][2:], 1)  # once more: it may have all that a session may
        disconnect(sock)

    def unsubscribe() -> None:
        sock, _ = connect(port, name, clean=False)
        packets = Packets(sock)
        for start in range(0, len(filters), UNSUBSCRIBED):
            sock.sendall(packet(0xA2, b"\0\2" + b"".join(filters[start : start + UNSUBSCRIBED])))
        for _ in range(0, len(filters), UNSUBSCRIBED):
            packets.until(0xB0)
        disconnect(sock)

    def end() -> None:
        sock, _ = connect(port, name, clean=True)
        disconnect(sock)
        time.sleep(2.0)  # upkeep deletes queues of filters

    return [
        ("subscribes", first),
        ("resumes", resume),
        ("unsubscribes from all", unsubscribe),
        ("subscribes again", first),
        ("ends", end),
    ]


def main() -> int:
    """Print the latencies of the pair for each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--retained", type=int, default=300_000)
    parser.add_argument("--filters", type=int, default=10_000)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lightmq-bench-") as folder:
        server = Server(Path(folder))
        port = server.ports["mqtt"]
        pair = Pair(port, "live", LIVE, burst=1, interval_s=0.005)
        try:
            report(pair, "nothing else", lambda: time.sleep(ALONE_S))
            for name, count, tail in (("exact", wanted.filters, b"/state"), ("wildcard", WILDCARDS, b"/#")):
                for what, work in phases(port, name, filters_of(count, tail)):
                    report(pair, f"a session of {count} {name} filters {what}", work)
            retain(port, wanted.retained)
            time.sleep(1.0)
            pair.latencies_ms()
            for qos in (0, 1):
                work = partial(take_retained, port, wanted.retained, qos)
                report(pair, f"# over {wanted.retained} retained, QoS {qos}", work)
            pair.end()
        finally:
            pair.kill()
            server.stop()
    return 0


def report(pair: Pair, what: str, work: Callable[[], None]) -> None:
    """Do it, and print how others fared."""
    pair.latencies_ms()
    begin = time.monotonic()
    work()
    took_s = time.monotonic() - begin
    found = pair.latencies_ms()
    assert found, "no message in that time"
    middle, high = found[len(found) // 2], found[int(len(found) * 0.99)]
    others = f"others p50 {middle:.1f} ms, p99 {high:.1f} ms, longest {found[-1]:.1f} ms of {len(found)}"
    print(f"{what}: {took_s:.1f} s; {others}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
