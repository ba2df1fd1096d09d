"""The listener: limits with counters, deadlines, an orderly stop."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from mqtt_proxy.config import QuotaConfig
from mqtt_proxy.listening.handshakes import ListenerSpec, TlsFiles
from mqtt_proxy.listening.listener import random_client_id
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.codec.limits import SessionLimits
from mqtt_proxy.mqtt.session.events import ConnectRequested
from mqtt_proxy.quotas import Quotas
from tests.support.certificates import HAVE_OPENSSL, Authority
from tests.unit.mqtt_proxy.listening.world import World, world

pytestmark = pytest.mark.usefixtures("twin")


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 5) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("limit", ["connections_max", "connections_per_address_max"])
async def test_limits_refuse_and_count(limit: str) -> None:
    """One client too many is cut and counted; when one leaves there is room again."""
    async with world(**{limit: 2}) as here:
        kept = [await here.open(), await here.open()]
        reader, _ = await here.open()
        assert await ended(reader)
        assert here.counters.refused.child(limit).value == 1
        assert len(here.handlers) == 2
        kept[0][1].close()
        assert await asyncio.wait_for(here.handlers[0].closed, 5) == ("peer_closed", False)
        await here.open()
        while len(here.handlers) < 3:
            await asyncio.sleep(0)
        assert here.counters.connections.child("tcp").value == 2


async def test_connect_deadline() -> None:
    """A socket that never sends CONNECT is closed at its deadline."""
    async with world(limits=SessionLimits(connect_deadline_ms=3_000)) as here:
        reader, _ = await here.open()
        while not here.handlers:
            await asyncio.sleep(0)
        here.clock.advance_ms(2_900)
        here.listener._expire()
        assert not here.handlers[0].closed.done()
        here.clock.advance_ms(700)
        here.listener._expire()
        assert await asyncio.wait_for(here.handlers[0].closed, 5) == ("connect_timeout", False)
        assert await ended(reader)
        assert here.counters.violations.child("connect_timeout").value == 1


async def test_stop_closes_everything() -> None:
    """After the stop no client is connected, every handler has been called, and no new client is admitted."""
    here = World()
    here.port = await here.listener.start("127.0.0.1", 0)
    reader, _ = await here.open()
    while not here.handlers:
        await asyncio.sleep(0)
    await here.listener.stop()
    assert here.handlers[0].closed.result() == ("server_stopping", False)
    assert not here.listener.connections
    assert await ended(reader)
    with pytest.raises(OSError):
        await here.open()
    await here.listener.stop()


async def test_a_port_in_use_is_an_error() -> None:
    """Two listeners cannot share a port."""
    async with world() as here:
        other = World()
        with pytest.raises(OSError):
            await other.listener.start("127.0.0.1", here.port)


def test_generated_ids_are_distinct() -> None:
    """Two clients without an id are two clients."""
    assert random_client_id() != random_client_id()
    assert len(random_client_id()) < 65


async def test_ports_share_limits_and_end_together(tmp_path: Path) -> None:
    """The ports of one listener count together; after the stop none of them is open."""
    async with world(connections_max=2) as here:
        other = await here.door(ListenerSpec(name="second"))
        kept = [await here.open(), await here.open_at(other)]
        while len(here.handlers) < len(kept):
            await asyncio.sleep(0)
        reader, _ = await here.open_at(other)
        assert await ended(reader)
        assert here.counters.refused.child("connections_max").value == 1
    for port in (here.port, other):
        with pytest.raises(OSError):
            await here.open_at(port)


async def test_ports_can_be_shared_only_when_both_ask_for_it() -> None:
    """Two listeners with `reuse_port` share a port; the kernel distributes sockets to both."""
    async with world(reuse_port=True) as here:
        other = World(reuse_port=True)
        assert await other.listener.start("127.0.0.1", here.port) == here.port
        kept = []
        while not (here.handlers and other.handlers):
            kept.append(await here.open())
            await asyncio.sleep(0)
        await other.listener.stop()


@pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")
async def test_reload_reads_every_certificate(tmp_path: Path) -> None:
    """On request, and automatically when the files have changed; one bad port does not keep the others from it."""
    authority = Authority(tmp_path)
    good, bad = authority.issue(), authority.issue()
    async with world() as here:
        doors = [
            ListenerSpec(name=name, tls=TlsFiles(each.certificate, each.key, counters=here.counters))
            for name, each in (("bad", bad), ("good", good))
        ]
        for door in doors:
            await here.door(door)
        assert here.listener.reload()
        bad.key.write_text("none")
        assert not here.listener.reload()
        assert here.counters.certificate_reloads.value == 3
        renewed = authority.issue()
        good.key.write_bytes(renewed.key.read_bytes())
        good.certificate.write_bytes(renewed.certificate.read_bytes())
        for _ in range(3):
            here.clock.advance_ms(2_000)
            here.listener._expire()
        assert here.counters.certificate_reloads.value == 4


async def test_an_address_that_opens_sockets_too_fast_is_marked_then_cut() -> None:
    """Two are accepted, two are to be refused at CONNECT, the fifth is closed at once and counted."""
    quotas = Quotas(QuotaConfig(connects_per_address_per_s=1, connects_per_address_burst=2))
    async with world(quotas=quotas) as front:
        writers = []
        for wanted in range(1, 5):
            _, writer = await front.open()
            writers.append(writer)
            while len(front.handlers) < wanted:
                await asyncio.sleep(0)
        assert [one.connection.peer.over_connect_rate for one in front.handlers] == [False, False, True, True]
        reader, writer = await front.open()
        writers.append(writer)
        assert await ended(reader)
        assert front.counters.refused.child("connect_rate").value == 1
        assert len(front.handlers) == 4
        for writer in writers:
            writer.close()


async def test_a_fleet_that_connects_at_once_is_served() -> None:
    """Five hundred sockets opened before the loop turns once: each gets its CONNACK."""
    connect = bytes.fromhex("100f00044d5154540402003c0003") + b"dev"
    async with world() as here:
        sockets = [socket.create_connection(("127.0.0.1", here.port)) for _ in range(500)]
        for each in sockets:
            each.sendall(connect)
            each.setblocking(False)
        loop = asyncio.get_running_loop()
        answers = await asyncio.wait_for(asyncio.gather(*(loop.sock_recv(each, 4) for each in sockets)), 20)
        assert set(answers) == {b"\x20\x02\x00\x00"}
        for each in sockets:
            each.close()


async def test_a_connect_that_waits_for_us_is_not_overdue() -> None:
    """However long; and its keep-alive begins with the CONNACK."""
    async with world(accept=False, limits=SessionLimits(connect_deadline_ms=3_000)) as here:
        reader, _ = await here.open(packets.Connect("a", True, 2))
        while not here.handlers:
            await asyncio.sleep(0)
        (handler,) = here.handlers
        await handler.wait(ConnectRequested)
        for _ in range(3):
            here.clock.advance_ms(2_900)
            here.listener._expire()
        handler.connection.session.answers.accept(False)
        handler.connection.flush()
        assert await asyncio.wait_for(reader.readexactly(4), 5) == bytes((0x20, 2, 0, 0))
        here.clock.advance_ms(2_900)
        here.listener._expire()
        assert not handler.closed.done()
        here.clock.advance_ms(300)
        here.listener._expire()
        assert (await asyncio.wait_for(handler.closed, 5))[0] == "keep_alive_timeout"


async def test_each_connection_counts_its_bytes_and_the_listener_their_windows() -> None:
    async with world() as here:
        sent = [encode(packets.Connect("c", True, 0)), encode(packets.Publish(b"t", b"x" * 93, 1, False, False, 1))]
        reader, writer = await here.open(*sent)
        await asyncio.wait_for(reader.readexactly(8), 5)
        flow_in, flow_out = here.handlers[0].connection.flow_in, here.handlers[0].connection.flow_out
        assert (flow_in.size_bytes, flow_out.size_bytes) == (len(b"".join(sent)), 8)
        assert here.counters.bytes_in.value == flow_in.size_bytes
        for _ in range(2):
            here.clock.advance_ms(5_000)
            here.listener._expire()
        assert flow_out.rates(10_000) == (0.0, 0.0)  # nothing in the last window and in this one
        writer.write(encode(packets.Publish(b"t", b"x" * 93, 1, False, False, 2)))
        await asyncio.wait_for(reader.readexactly(4), 5)
        assert flow_in.rates(20_000)[1] == 20.0  # a hundred bytes in five seconds
        assert flow_out.rates(20_000)[1] == 0.8


async def test_time_in_which_the_loop_was_late_is_not_the_clients() -> None:
    """Nobody could be served in it."""
    async with world(limits=SessionLimits(connect_deadline_ms=3_000)) as here:
        await here.open()
        while not here.handlers:
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        here.clock.advance_ms(9_000)
        here.listener._timer.cancel()
        here.listener._timer = loop.call_at(loop.time() - 9, lambda: None)  # as after a turn of nine seconds
        here.listener._expire()
        here.clock.advance_ms(2_500)
        here.listener._expire()
        assert not here.handlers[0].closed.done()
        here.clock.advance_ms(1_000)
        here.listener._expire()
        assert (await asyncio.wait_for(here.handlers[0].closed, 5))[0] == "connect_timeout"
