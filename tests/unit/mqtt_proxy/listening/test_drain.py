"""Sending clients away: their codes, how many at a time, and that all are served until then."""

from __future__ import annotations

import asyncio

import pytest

from mqtt_proxy.listening import listener
from mqtt_proxy.listening.listener import drain
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.encode import encode
from tests.unit.mqtt_proxy.listening.world import World, world

pytestmark = pytest.mark.usefixtures("twin")

CONNECT_5 = b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x03dev"


async def connected(here: World, first: bytes) -> asyncio.StreamReader:
    """A client that was accepted, with its CONNACK read."""
    reader, _ = await here.open(first)
    head = await asyncio.wait_for(reader.readexactly(2), 5)
    await asyncio.wait_for(reader.readexactly(head[1]), 5)
    return reader


@pytest.mark.parametrize(
    ("reference", "moved", "said"),
    [
        ("", False, b"\xe0\x02\x8b\x00"),
        ("10.0.0.9:1883", False, b"\xe0\x12\x9c\x10\x1c\x00\x0d10.0.0.9:1883"),
        ("10.0.0.9:1883", True, b"\xe0\x12\x9d\x10\x1c\x00\x0d10.0.0.9:1883"),
    ],
)
async def test_codes_of_a_drain(reference: str, moved: bool, said: bytes) -> None:
    """MQTT 5 gets a code and a server reference, which 3.1.1 does not have; both sessions end by the server's doing."""
    async with world() as here:
        new = await connected(here, CONNECT_5)
        old = await connected(here, encode(packets.Connect("old", True, 60, will=packets.Will(b"w", b"x", 0, False))))
        undecided, _ = await here.open()
        while len(here.handlers) < 3:
            await asyncio.sleep(0)
        await drain(here.listener, interval_ms=1_000, server_reference=reference, moved=moved)
        assert await asyncio.wait_for(new.read(), 5) in (said, said[:1] + b"\x01\x8b")
        assert await asyncio.wait_for(old.read(), 5) == b""
        assert await asyncio.wait_for(undecided.read(), 5) == b""
        ends = [await asyncio.wait_for(handler.closed, 5) for handler in here.handlers[:2]]
        assert ends == [("server_stopping", False), ("server_stopping", True)]
        with pytest.raises(OSError):
            await here.open()


async def test_they_go_in_turns_and_are_served_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten clients over ten steps: after the first step one is disconnected and the others still get their answers."""
    monkeypatch.setattr(listener, "BATCH_MIN", 1)
    async with world() as here:
        readers = [await connected(here, encode(packets.Connect(f"c{n}", True, 60))) for n in range(10)]
        going = asyncio.ensure_future(drain(here.listener, interval_ms=10 * listener.STEP_MS))
        while len(here.listener.connections) == 10:
            await asyncio.sleep(0)
        assert len(here.listener.connections) >= 8
        last = next(reversed([h for h in here.handlers if not h.closed.done()]))
        with pytest.raises(OSError):
            await here.open()
        assert last.connection.close_reason is None
        await going
        for reader in readers:
            assert await asyncio.wait_for(reader.read(), 5) == b""
        assert here.counters.connections.child("tcp").value == 0


async def test_a_handful_goes_at_once() -> None:
    """However long the interval."""
    async with world() as here:
        await connected(here, encode(packets.Connect("one", True, 60)))
        async with asyncio.timeout(5):
            await drain(here.listener, interval_ms=600_000)
        assert (await asyncio.wait_for(here.handlers[0].closed, 5))[0] == "server_stopping"
