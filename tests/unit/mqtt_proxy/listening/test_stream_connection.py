"""Connections on transports: where they read, and which clients are admitted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mqtt_proxy.listening import native_sockets
from mqtt_proxy.listening.connection import READ_BUFFER_BYTES
from mqtt_proxy.listening.stream_connection import StreamProtocol, read_buffer
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.session.events import ConnectRequested
from tests.unit.mqtt_proxy.listening.world import World, world


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain sockets are on transports too."""
    monkeypatch.setattr(native_sockets, "core", native_sockets.pure_core())


async def arrived(here: World) -> Any:
    """The first handler, once its client has sent CONNECT."""
    async with asyncio.timeout(5):
        while not here.handlers:
            await asyncio.sleep(0)
    await here.handlers[0].wait(ConnectRequested)
    return here.handlers[0]


async def test_an_unaccepted_client_has_the_beginning_of_the_buffer() -> None:
    """And all of it afterwards."""
    async with world(accept=False, limits=SessionLimits(unauthenticated_bytes_max=1_000)) as here:
        reader, _ = await here.open(packets.Connect("dev", True, 60))
        handler = await arrived(here)
        connection = handler.connection
        shared = here.listener._shared
        protocol = StreamProtocol(connection, shared, here.listener)
        assert len(read_buffer(connection.session, shared)) == len(protocol.get_buffer(-1)) == 1_000
        connection.session.answers.accept(False)
        connection.flush()
        assert await asyncio.wait_for(reader.readexactly(4), 5) == b"\x20\x02\x00\x00"
        assert len(protocol.get_buffer(-1)) == READ_BUFFER_BYTES


async def test_a_client_over_a_limit_is_cut_unread() -> None:
    """Only the counter records it."""
    async with world(connections_max=1) as here:
        first, _ = await here.open(packets.Connect("one", True, 60))
        await asyncio.wait_for(first.readexactly(4), 5)
        second, writer = await here.open()
        assert await asyncio.wait_for(second.read(), 5) == b""
        writer.close()
        assert len(here.handlers) == 1
        assert here.counters.refused.child("connections_max").value == 1
