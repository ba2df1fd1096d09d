"""Many sessions that are away or do not read: a backlog stays in the log; each gets all of it, once, in order.

`python -m benchmarks sessions` measures the same with ten thousand of them.
"""

from __future__ import annotations

import select
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import wire
from tests.processes.rig import Server, no_traceback

DEADLINE_S = 30.0
OUTPUT_BYTES_MAX = 32_768
SMALL_RECEIVE_BYTES = 4_096

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that buffers little for a socket that does not read."""
    started = Server(tmp_path / "data", f"--set=proxy.output_bytes_max={OUTPUT_BYTES_MAX}")
    started.start()
    yield started
    assert started.end(signal.SIGTERM) == 0
    no_traceback(started)


class Numbers:
    """A subscriber that reads numbers from deliveries of one length and acknowledges them."""

    def __init__(self, server: Server, client_id: str, *, clean: bool, receive_bytes: int = 65_536) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(DEADLINE_S)
        self.socket.connect(("127.0.0.1", server.port))
        self.socket.sendall(wire.connect(client_id, flags=2 if clean else 0))
        self.present = self._take(4) == b"\x20\x02\x01\x00"
        self.got: list[int] = []
        self._rest = b""

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Wait until it is granted."""
        self.socket.sendall(wire.subscribe((topic_filter, qos)))
        assert self._take(5) == b"\x90\x03\x00\x01" + bytes([qos])

    def leave(self) -> None:
        """Send DISCONNECT and wait for the end."""
        self.socket.sendall(b"\xe0\x00")
        while self.socket.recv(65_536):
            pass
        self.socket.close()

    def read(self, frame_bytes: int, *, qos: int, topic: str) -> None:
        """Read once; the number is at the beginning of the payload."""
        data = self._rest + self.socket.recv(262_144)
        assert len(data) > len(self._rest), "the server closed the connection"
        whole = len(data) // frame_bytes * frame_bytes
        if whole:
            at = data.index(topic.encode()) + len(topic)
            frame = struct.Struct(f">{at}x{'H' if qos else ''}Q{frame_bytes - at - 8 - 2 * qos}x")
            found = list(frame.iter_unpack(memoryview(data)[:whole]))
            self.got += [fields[-1] for fields in found]
            if qos:
                self.socket.sendall(b"".join([struct.pack(">HH", 0x4002, fields[0]) for fields in found]))
        self._rest = data[whole:]

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            assert piece
            data += piece
        return data


def publish_numbers(publisher: wire.Peer, topic: str, numbers: range, padding_bytes: int) -> int:
    """QoS 1, acknowledged; the length of one packet."""
    packets = [
        wire.publish(topic, struct.pack(">Q", number) + bytes(padding_bytes), qos=1, packet_id=1 + number - numbers[0])
        for number in numbers
    ]
    publisher.send(b"".join(packets))
    assert len(publisher.receive(4 * len(packets))) == 4 * len(packets)
    assert len({len(packet) for packet in packets}) == 1
    return len(packets[0])


def connected(server: Server, client_id: str) -> wire.Peer:
    """A publisher."""
    peer = wire.Peer(server.port)
    peer.send(wire.connect(client_id))
    assert peer.receive(4) == b"\x20\x02\x00\x00"
    return peer


def test_away(server: Server) -> None:
    """300 sessions, 3,000 messages behind one filter: memory does not grow, each session gets every message once."""
    count = 3_000
    for number in range(300):
        client = Numbers(server, f"away-{number}", clean=False)
        client.subscribe("backlog/#", 1)
        client.leave()
    publisher = connected(server, "publisher")
    publish_numbers(publisher, "backlog/x", range(500), 200)  # one-time allocations
    before_kb = server.rss_kb()
    for first in range(500, count, 500):
        frame_bytes = publish_numbers(publisher, "backlog/x", range(first, first + 500), 200)
    assert server.rss_kb() - before_kb < 1_500  # one session's share would be 500 KB
    for number in range(300):
        client = Numbers(server, f"away-{number}", clean=False)
        assert client.present
        while not client.got or client.got[-1] < count - 1:
            client.read(frame_bytes, qos=1, topic="backlog/x")
        assert client.got == list(range(count)), number
        client.leave()
    publisher.close()


def test_slow(server: Server) -> None:
    """50 sessions that read little or nothing: bounded memory; a fast one gets all messages, then so do they."""
    count, padding_bytes, step = 4_000, 1_000, 200
    clients = [Numbers(server, f"slow-{number}", clean=True, receive_bytes=SMALL_RECEIVE_BYTES) for number in range(50)]
    for number, client in enumerate(clients):
        client.subscribe("busy/#", number % 2)
    quick = Numbers(server, "quick", clean=True)
    quick.subscribe("busy/#", 1)
    publisher = connected(server, "publisher")
    before_kb = server.rss_kb()
    for first in range(0, count, step):
        frame_bytes = publish_numbers(publisher, "busy/x", range(first, first + step), padding_bytes)
        while len(quick.got) < first + step:
            quick.read(frame_bytes, qos=1, topic="busy/x")
        for number in range(0, 50, 2):  # each at a different position
            for _ in range(number // 2):
                clients[number].read(frame_bytes - 2, qos=0, topic="busy/x")
    assert quick.got == list(range(count))
    grown_kb = server.rss_kb() - before_kb
    behind = [count - len(client.got) for client in clients]
    assert min(behind) > count // 4, behind
    assert grown_kb < 50 * 400, grown_kb  # out of 4,000 KB each that they were not given
    read_to_the_end(clients, frame_bytes, count)
    publisher.close()


def read_to_the_end(clients: list[Numbers], frame_bytes: int, count: int) -> None:
    """All at the same time; each has every number once, in order."""
    left = {client.socket.fileno(): (client, number % 2) for number, client in enumerate(clients)}
    poll = select.poll()
    for number in left:
        poll.register(number, select.POLLIN)
    while left:
        ready = poll.poll(DEADLINE_S * 1_000)
        assert ready, [len(client.got) for client in clients]
        for number, _ in ready:
            client, qos = left[number]
            client.read(frame_bytes - (0 if qos else 2), qos=qos, topic="busy/x")
            if len(client.got) >= count:
                poll.unregister(number)
                del left[number]
    for client in clients:
        assert client.got == list(range(count))
        client.socket.close()
