"""Raw bytes for peers that break the rules: hand-made MQTT packets and sockets that wait for the end."""

from __future__ import annotations

import socket
import struct

DEADLINE_S = 10.0


def text(value: str | bytes) -> bytes:
    """A string of MQTT: u16 length, bytes."""
    encoded = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(encoded)) + encoded


def packet(first: int, body: bytes = b"") -> bytes:
    """Fixed header and body."""
    length, encoded = len(body), b""
    while True:
        length, digit = divmod(length, 128)
        encoded += bytes([digit | (128 if length else 0)])
        if not length:
            return bytes([first]) + encoded + body


def connect(client_id: str | bytes, *, flags: int = 2, level: int = 4, name: str = "MQTT", rest: bytes = b"") -> bytes:
    """CONNECT; `flags` 2 is a clean session without anything."""
    return packet(0x10, text(name) + bytes([level, flags]) + struct.pack(">H", 60) + text(client_id) + rest)


def publish(topic: str | bytes, payload: bytes = b"x", *, qos: int = 0, packet_id: int = 1) -> bytes:
    """PUBLISH."""
    return packet(0x30 | qos << 1, text(topic) + (struct.pack(">H", packet_id) if qos else b"") + payload)


def subscribe(*filters: tuple[str, int], packet_id: int = 1) -> bytes:
    """SUBSCRIBE."""
    body = b"".join(text(topic_filter) + bytes([qos]) for topic_filter, qos in filters)
    return packet(0x82, struct.pack(">H", packet_id) + body)


class Peer:
    """A socket to a local port."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)

    def send(self, data: bytes) -> None:
        """Send as much as the peer reads."""
        try:
            self.socket.sendall(data)
        except OSError:
            return  # it has closed already, which is what the tests look for

    def receive(self, count: int) -> bytes:
        """Exactly this many bytes; fewer at the end of the stream."""
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                break
            data += piece
        return data

    def until_closed(self) -> bytes:
        """Everything until the peer closes; fails when it does not."""
        data = b""
        while True:
            try:
                piece = self.socket.recv(65_536)
            except ConnectionError:
                return data
            if not piece:
                return data
            data += piece

    def close(self) -> None:
        """Close."""
        self.socket.close()
