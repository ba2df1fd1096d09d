"""An MQTT broker with scripted answers: raw bytes in, raw bytes out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

CONNECT, PUBLISH, PUBACK, SUBSCRIBE, DISCONNECT = 1, 3, 4, 8, 14


class ScriptedPeer:
    """Accepts CONNECT and SUBSCRIBE and answers QoS 1 publishes with `code`; `answer` may replace the answer."""

    def __init__(self, *, version: int = 5, connack_properties: bytes = b"") -> None:
        self.port = 0
        self.version = version
        self.code = 0
        self.connack_code = 0
        self.connack_properties = connack_properties
        self.packets: list[tuple[int, bytes]] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.answer: Callable[[int, bytes], bytes | None] = lambda _kind, _body: None
        self.came = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self.writers:
            writer.close()

    def published(self) -> list[tuple[bytes, bytes]]:
        """(topic, rest after the packet id) of each QoS 1 PUBLISH."""
        found = []
        for kind, body in self.packets:
            if kind == PUBLISH:
                size = int.from_bytes(body[:2], "big")
                found.append((body[2 : 2 + size], body[4 + size :]))
        return found

    def send(self, *packets: bytes) -> None:
        """To the newest connection."""
        self.writers[-1].write(b"".join(packets))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                kind, body = await _packet(reader)
                self.packets.append((kind, body))
                self.came.set()
                said = self.answer(kind, body)
                writer.write(self._usual(kind, body) if said is None else said)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _usual(self, kind: int, body: bytes) -> bytes:
        five = self.version == 5
        if kind == CONNECT:
            said = bytes((len(self.connack_properties),)) + self.connack_properties if five else b""
            return packet(0x20, bytes((0, self.connack_code)) + said)
        if kind == SUBSCRIBE:
            return packet(0x90, body[:2] + (b"\0" if five else b"") + b"\x01" * body.count(b"/#"))
        if kind == PUBLISH:
            size = int.from_bytes(body[:2], "big")
            return packet(0x40, body[2 + size : 4 + size] + (bytes((self.code,)) if five and self.code else b""))
        return b""


def packet(head: int, body: bytes) -> bytes:
    """One packet."""
    return bytes((head,)) + number(len(body)) + body


def number(value: int) -> bytes:
    """A variable byte integer."""
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*made, value))


def publish_packet(topic: bytes, packet_id: int, payload: bytes, properties: bytes | None = b"") -> bytes:
    """A QoS 1 PUBLISH; `properties` is None for 3.1.1."""
    said = b"" if properties is None else number(len(properties)) + properties
    return packet(0x32, len(topic).to_bytes(2, "big") + topic + packet_id.to_bytes(2, "big") + said + payload)


async def _packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readexactly(1))[0]
    size = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return head >> 4, await reader.readexactly(size)
