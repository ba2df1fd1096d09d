"""The last packets arrive although the client is still sending."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from mqtt_proxy.listening import connection
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.decode import decode, split
from mqtt_proxy.mqtt.codec.encode import encode
from tests.unit.mqtt_proxy.listening.world import world

pytestmark = pytest.mark.usefixtures("twin")

CONNECT = encode(packets.Connect("dev", True, 60, level=5))
TOO_LARGE = b"\x30\xff\xff\xff\x7f"
CONNACK_BYTES = 16


async def send_for_ever(writer: asyncio.StreamWriter) -> None:
    """Until the socket accepts no more."""
    while True:
        writer.write(bytes(1_000))
        await writer.drain()
        await asyncio.sleep(0)


async def test_a_client_that_is_still_sending_reads_why_it_is_disconnected() -> None:
    """No reset overtakes DISCONNECT 0x95, and the socket ends when the client has ended its side."""
    async with world() as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(CONNECT)
        await reader.readexactly(CONNACK_BYTES)
        writer.write(TOO_LARGE + bytes(4_000_000))
        await writer.drain()
        last = decode(*split(await asyncio.wait_for(reader.read(), 5)), 5)
        assert isinstance(last, packets.Disconnect)
        assert last.reason == 0x95
        assert (await asyncio.wait_for(here.handlers[0].closed, 5))[0] == "packet_too_large"
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        async with asyncio.timeout(5):
            while here.listener.connections:
                await asyncio.sleep(0)


async def test_a_client_that_goes_on_sending_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the time allowed for lingering."""
    monkeypatch.setattr(connection, "FAREWELL_S", 0.05)
    async with world() as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(CONNECT + TOO_LARGE)
        await reader.readexactly(CONNACK_BYTES)
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(send_for_ever(writer), 5)


async def test_a_connection_that_cannot_be_half_closed_is_closed() -> None:
    """TLS and WebSocket end as a whole."""

    class Whole:
        closed = False

        def close(self) -> None:
            self.closed = True

        def get_write_buffer_size(self) -> int:
            return 0

    wire = Whole()
    connection.lingering_close(wire, asyncio.get_running_loop(), explained=True)
    assert wire.closed
