"""Raw clients of the session benchmark: packets of one fixed size, so that reading costs next to nothing.

Every message is `TOPIC`, a number and the nanosecond it was sent at, padded; a delivery of it has the same length each
time and is parsed by `struct`. `Reader` checks that numbers arrive without gap and without repetition.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import struct
import time
from multiprocessing.connection import Connection

DEADLINE_S = 120.0
SMALL_RECEIVE_BYTES = 4_096


class Layout:
    """A message on one topic as bytes on the wire, for one payload size."""

    def __init__(self, topic: bytes, payload_bytes: int) -> None:
        self.topic = topic
        padding = payload_bytes - 16
        self.remaining = {qos: 2 + len(topic) + (2 if qos else 0) + payload_bytes for qos in (0, 1)}
        length = {qos: bytes([size & 127 | 128, size >> 7]) for qos, size in self.remaining.items()}
        assert all(128 <= size < 16_384 for size in self.remaining.values())
        name = struct.pack(">H", len(topic)) + topic
        self._head = {qos: bytes([0x30 | qos << 1]) + length[qos] + name for qos in (0, 1)}
        self._padding = bytes(padding)
        self.frame = {
            0: struct.Struct(f">{len(self._head[0])}sQQ{padding}x"),
            1: struct.Struct(f">{len(self._head[1])}sHQQ{padding}x"),
        }

    def publish(self, packet_id: int, number: int) -> bytes:
        """PUBLISH with QoS 1."""
        stamp = time.monotonic_ns()
        return self._head[1] + struct.pack(">HQQ", packet_id, number, stamp) + self._padding

    def is_head(self, head: bytes, qos: int) -> bool:
        """Whether this begins a delivery, sent for the first time or again."""
        return head == self._head[qos] or bytes([head[0] & ~8]) + head[1:] == self._head[qos]


def connect(port: int, client_id: str, *, clean: bool, receive_bytes: int = 0) -> tuple[socket.socket, bool]:
    """A connected socket, and whether the session was there."""
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(DEADLINE_S)
    sock.connect(("127.0.0.1", port))
    name = client_id.encode()
    flags = 2 if clean else 0
    sock.sendall(bytes([0x10, 12 + len(name)]) + b"\0\4MQTT\4" + bytes([flags]) + b"\x0e\x10\0" + bytes([len(name)]))
    sock.sendall(name)
    answer = take(sock, 4)
    assert answer[:2] + answer[3:] == b"\x20\x02\x00", answer
    return sock, answer[2] == 1


def subscribe(sock: socket.socket, topic_filter: bytes, qos: int) -> None:
    """Subscribe and wait for the SUBACK."""
    sock.sendall(bytes([0x82, 5 + len(topic_filter)]) + b"\0\1\0" + bytes([len(topic_filter)]) + topic_filter)
    sock.sendall(bytes([qos]))
    assert take(sock, 5) == b"\x90\x03\x00\x01" + bytes([qos])


def disconnect(sock: socket.socket) -> None:
    """DISCONNECT, and wait until the server has closed."""
    sock.sendall(b"\xe0\x00")
    while sock.recv(65_536):
        pass
    sock.close()


def take(sock: socket.socket, size: int) -> bytes:
    """Exactly so many bytes."""
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        assert piece, "the server closed a connection"
        data += piece
    return data


class Reader:
    """What one subscriber received: the next expected number, and the deviations."""

    def __init__(self, sock: socket.socket, layout: Layout, qos: int, following: int = 0) -> None:
        self.sock = sock
        self.following = following
        self.repeated = 0
        self.missed = 0
        self.latencies_ns: list[int] = []
        self._layout = layout
        self._qos = qos
        self._rest = b""

    def read(self, size: int = 262_144, *, timed: bool = False) -> int:
        """Read once and acknowledge; how many messages came."""
        data = self._rest + self.sock.recv(size)
        assert len(data) > len(self._rest), "the server closed a connection"
        frame = self._layout.frame[self._qos]
        whole = len(data) // frame.size * frame.size
        now, answers, count = time.monotonic_ns(), [], 0
        for head, *ids, number, stamp in frame.iter_unpack(memoryview(data)[:whole]):
            count += 1
            if not self._layout.is_head(head, self._qos):
                raise AssertionError(f"not a delivery: {head!r}")
            if number < self.following:
                self.repeated += 1
            else:
                self.missed += number - self.following
                self.following = number + 1
            if ids:
                answers.append(b"\x40\x02" + struct.pack(">H", ids[0]))
            if timed:
                self.latencies_ns.append(now - stamp)
        self._rest = data[whole:]
        if answers:
            self.sock.sendall(b"".join(answers))
        return count


class Publisher:
    """Rising numbers with QoS 1 on one topic."""

    def __init__(self, port: int, name: str, layout: Layout) -> None:
        self.sock, _ = connect(port, name, clean=True)
        self.count = 0
        self._layout = layout

    def send(self, count: int) -> None:
        """So many messages at once; returns when all are acknowledged."""
        self.sock.sendall(b"".join(self._layout.publish(1 + n, self.count + n) for n in range(count)))
        self.count += count
        acknowledged = take(self.sock, 4 * count)
        assert acknowledged[::4] == b"\x40" * count


def _run_pair(port: int, name: str, layout: Layout, burst: int, interval_s: float, line: Connection) -> None:
    publisher = Publisher(port, f"{name}-from", layout)
    sock, _ = connect(port, f"{name}-to", clean=True)
    subscribe(sock, layout.topic, 1)
    reader = Reader(sock, layout, 1)
    line.send(None)
    due = time.monotonic()
    while True:
        while line.poll(max(0.0, due - time.monotonic())):
            if line.recv() == "end":
                line.send((publisher.count, reader.missed, reader.repeated))
                return
            line.send(reader.latencies_ns)
            reader.latencies_ns = []
        due = max(due + interval_s, time.monotonic())
        publisher.send(burst)
        while reader.following < publisher.count:
            reader.read(timed=True)


class Pair:
    """A publisher and a subscriber in a process of their own: a burst every interval, one after the other."""

    def __init__(self, port: int, name: str, layout: Layout, *, burst: int, interval_s: float) -> None:
        self._line, other = multiprocessing.Pipe()
        arguments = (port, name, layout, burst, interval_s, other)
        self._process = multiprocessing.get_context("fork").Process(target=_run_pair, args=arguments, daemon=True)
        self._process.start()
        other.close()
        self._line.recv()

    def latencies_ms(self) -> list[float]:
        """All since the last time, sorted."""
        self._line.send("latencies")
        return sorted(each / 1e6 for each in self._line.recv())

    def end(self) -> int:
        """Stop; how many messages there were, each received once."""
        self._line.send("end")
        count, missed, repeated = self._line.recv()
        self._process.join()
        assert (missed, repeated) == (0, 0)
        return int(count)

    def kill(self) -> None:
        """Clean up, whether it succeeded or not."""
        with contextlib.suppress(AttributeError):
            self._process.kill()


def quantiles(latencies_ms: list[float]) -> str:
    """Median and 99th percentile."""
    if not latencies_ms:
        return "no message"
    middle, high = latencies_ms[len(latencies_ms) // 2], latencies_ms[int(len(latencies_ms) * 0.99)]
    return f"p50 {middle:.1f} ms, p99 {high:.1f} ms of {len(latencies_ms)}"
