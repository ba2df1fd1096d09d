"""A QoS 2 client of raw packets that keeps the state MQTT requires across any number of connections.

As a publisher it numbers its messages and repeats exactly the step that was not answered; as a subscriber it takes a
message when its PUBLISH has an id it does not store, and forgets the id at PUBREL. So it has what a device that
keeps its session would have: a number that comes twice, or is missing, is the server's fault. Thread rule: one thread
per client, started by `run`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

CONNECT_DEADLINE_S = 30.0
IN_FLIGHT = 20


def packet(first: int, body: bytes) -> bytes:
    """A packet of less than 16 KiB."""
    length = len(body)
    return bytes((first,)) + (bytes((length,)) if length < 128 else bytes((length & 127 | 128, length >> 7))) + body


def text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


class ExactClient:
    """One session of clean=false; `port()` is the server's present port."""

    def __init__(
        self, client_id: str, port: Callable[[], int], *, publish_to: str = "", subscribe_to: str = ""
    ) -> None:
        self.client_id = client_id
        self._port = port
        self._publish_to = publish_to
        self._subscribe_to = subscribe_to
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.connections = 0
        self.changed = threading.Condition()
        # As a publisher: packet id -> (number, released), in the order of sending.
        self.outgoing: dict[int, tuple[int, bool]] = {}
        self.next_number = 0
        self.completed = 0
        self.limit: int | None = None
        # As a subscriber.
        self.taken: list[int] = []
        self.held: set[int] = set()
        self.subscribed = False
        self.lost_session = False
        self.failure = ""

    def run(self) -> ExactClient:
        """Begin."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End without DISCONNECT."""
        self._stop.set()
        self._thread.join(CONNECT_DEADLINE_S)

    def until(self, condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
        """Wait for a change that this client makes."""
        with self.changed:
            assert self.changed.wait_for(lambda: condition() or bool(self.failure), deadline_s), self.story()
        assert not self.failure, self.failure

    def story(self) -> str:
        """The state of the exchange."""
        return (
            f"{self.client_id}: {self.connections} connections, sent {self.next_number}, completed {self.completed},"
            f" waiting {self.outgoing}, taken {len(self.taken)} {self.taken[-3:]}, held {self.held}"
        )

    # -- one connection after the other --------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port()), 5) as sock:
                    sock.settimeout(0.1)
                    self._connection(sock)
            except OSError:
                self._stop.wait(0.05)
            except AssertionError as error:
                with self.changed:
                    self.failure = f"{self.client_id}: {error}"
                    self.changed.notify_all()
                return

    def _connection(self, sock: socket.socket) -> None:
        sock.sendall(packet(0x10, b"\x00\x04MQTT\x04\x00\x00\x1e" + text(self.client_id)))
        buffer = b""
        greeted = False
        deadline = time.monotonic() + CONNECT_DEADLINE_S
        while not self._stop.is_set():
            if greeted:
                self._publish_more(sock)
            try:
                data = sock.recv(65536)
            except TimeoutError:
                assert greeted or time.monotonic() < deadline, "no CONNACK"
                continue
            if not data:
                return
            buffer += data
            while (found := self._split(buffer)) is not None:
                first, body, buffer = found
                if not greeted:
                    assert first == 0x20, first
                    if body[1]:
                        self._stop.wait(0.05)
                        return
                    greeted = True
                    self._greeted(sock, present=bool(body[0]))
                else:
                    self._handle(sock, first, body)

    @staticmethod
    def _split(buffer: bytes) -> tuple[int, bytes, bytes] | None:
        length = shift = 0
        for at in range(1, min(5, len(buffer))):
            length |= (buffer[at] & 127) << shift
            shift += 7
            if buffer[at] < 128:
                end = at + 1 + length
                return (buffer[0], buffer[at + 1 : end], buffer[end:]) if len(buffer) >= end else None
        return None

    def _greeted(self, sock: socket.socket, *, present: bool) -> None:
        if self.connections and not present:
            self.lost_session = True
        self.connections += 1
        if self._subscribe_to and not self.subscribed:
            sock.sendall(packet(0x82, b"\xff\xff" + text(self._subscribe_to) + b"\x02"))
        for packet_id, (number, released) in list(self.outgoing.items()):
            if released:
                sock.sendall(packet(0x62, packet_id.to_bytes(2, "big")))
            else:
                self._send(sock, packet_id, number, dup=True)

    def _send(self, sock: socket.socket, packet_id: int, number: int, *, dup: bool) -> None:
        body = text(self._publish_to) + packet_id.to_bytes(2, "big") + b"%d" % number
        sock.sendall(packet(0x3C if dup else 0x34, body))

    def _publish_more(self, sock: socket.socket) -> None:
        if not self._publish_to:
            return
        while len(self.outgoing) < IN_FLIGHT and (self.limit is None or self.next_number < self.limit):
            packet_id = self.next_number % 65_000 + 1
            number, self.next_number = self.next_number, self.next_number + 1
            self.outgoing[packet_id] = (number, False)
            self._send(sock, packet_id, number, dup=False)

    def _handle(self, sock: socket.socket, first: int, body: bytes) -> None:
        packet_id = int.from_bytes(body[:2], "big")
        kind = first >> 4
        with self.changed:
            if kind == 3:
                self._message(sock, first, body)
            elif kind == 5:
                if packet_id in self.outgoing:
                    self.outgoing[packet_id] = (self.outgoing[packet_id][0], True)
                sock.sendall(packet(0x62, body[:2]))
            elif kind == 6:
                self.held.discard(packet_id)
                sock.sendall(packet(0x70, body[:2]))
            elif kind == 7:
                if self.outgoing.pop(packet_id, None) is not None:
                    self.completed += 1
            elif kind == 9:
                assert body[2:] == b"\x02", body
                self.subscribed = True
            self.changed.notify_all()

    def _message(self, sock: socket.socket, first: int, body: bytes) -> None:
        size = int.from_bytes(body[:2], "big")
        assert first & 6 == 4, f"QoS {first >> 1 & 3}"
        packet_id = int.from_bytes(body[2 + size : 4 + size], "big")
        if packet_id not in self.held:
            self.held.add(packet_id)
            self.taken.append(int(body[4 + size :]))
        sock.sendall(packet(0x50, body[2 + size : 4 + size]))
