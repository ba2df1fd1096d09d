"""A client of raw packets for tests of what a server must not do."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Self

from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.decode import decode
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.wire import fixed_header

ANSWER_S = 20.0
"""Longest wait for something that must come."""


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, level: int) -> None:
        self._reader = reader
        self._writer = writer
        self._data = b""
        self.level = level
        self.connack: Any = None

    @classmethod
    async def connect(
        cls,
        port: int,
        client_id: str,
        user: str | None = None,
        password: bytes | None = None,
        *,
        level: int = 5,
        clean: bool = True,
        will: packets.Will | None = None,
        properties: dict[int, Any] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        """A connection whose CONNECT was answered, one way or the other."""
        client = cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls), level)
        client.send(packets.Connect(client_id, clean, 0, user, password, will, level, properties))
        client.connack = await client.receive()
        return client

    def send(self, *sent: Any) -> None:
        """Send packets."""
        self._writer.write(b"".join(encode(one, self.level) for one in sent))

    async def receive(self) -> Any:
        """The next packet; None at the end of the connection."""
        while True:
            header = fixed_header(self._data, 0, len(self._data)) if len(self._data) > 1 else None
            if header is not None and len(self._data) >= sum(header):
                body, length = header
                packet = decode(self._data[0], self._data[body : body + length], self.level)
                self._data = self._data[body + length :]
                return packet
            data = await asyncio.wait_for(self._reader.read(65_536), ANSWER_S)
            if not data:
                return None
            self._data += data

    async def ask(self, packet: Any) -> Any:
        """Send a packet; returns the next one that is no message. Earlier messages are lost: call `messages` first."""
        self.send(packet)
        while isinstance(got := await self.receive(), packets.Publish):
            pass
        return got

    async def messages(self) -> list[packets.Publish]:
        """Messages that come before the answer to a PINGREQ; they are acknowledged."""
        self.send(packets.Pingreq())
        found = []
        while (got := await self.receive()) is not None and not isinstance(got, packets.Pingresp):
            if isinstance(got, packets.Publish):
                found.append(got)
                if got.qos:
                    self.send(packets.Puback(got.packet_id))
        return found

    async def subscribe(self, topic_filter: str, qos: int = 1, **properties: Any) -> int:
        """Subscribe; returns the code of the SUBACK."""
        answer = await self.ask(packets.Subscribe(1, [(topic_filter, qos)], **properties))
        return int(answer.codes[0])

    async def publish(self, topic: str, payload: bytes = b"x", qos: int = 1, *, retain: bool = False) -> int | None:
        """Publish; returns the reason code of the answer, None when the connection ended instead."""
        message = packets.Publish(topic.encode(), payload, qos, retain, False, 1 if qos else 0)
        answer = await self.ask(message)
        if isinstance(answer, packets.Pubrec) and answer.reason < 0x80:
            answer = await self.ask(packets.Pubrel(1))
        return None if answer is None else int(answer.reason)

    async def close(self) -> None:
        """Cut the connection: a will is due."""
        self._writer.close()
        await self._writer.wait_closed()
