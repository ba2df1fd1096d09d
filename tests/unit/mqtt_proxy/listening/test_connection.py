"""Connections over real sockets: one feed per read, one write per turn, acceptance, pauses, ends."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mqtt_proxy.listening.connection import READ_BUFFER_BYTES, ClientConnection, LoopState, MqttConnection, Written
from mqtt_proxy.metrics import FrontCounters
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec.encode import encode
from mqtt_proxy.mqtt.session.events import Acknowledged, ConnectRequested, Disconnected, PublishBatch, Violated
from remoting.transport.turn import soon
from runtime.metrics import Registry
from tests.support.clock import ManualClock
from tests.unit.mqtt_proxy.listening.world import world

pytestmark = pytest.mark.usefixtures("twin")

WILL = packets.Will(b"w", b"gone", 0, False)


async def answer(reader: asyncio.StreamReader, size: int) -> bytes:
    return await asyncio.wait_for(reader.readexactly(size), 5)


async def test_connect_publish_acknowledge_disconnect() -> None:
    """An ordinary connection; publishes sent right after CONNECT wait for its acceptance and come as one batch."""
    publishes = [packets.Publish(b"a/b", b"x" * n, 1, False, False, n + 1) for n in range(20)]
    async with world() as here:
        reader, writer = await here.open(packets.Connect("dev", True, 60, will=WILL), *publishes)
        assert await answer(reader, 4) == b"\x20\x02\x00\x00"
        assert await answer(reader, 80) == b"".join(b"\x40\x02" + n.to_bytes(2, "big") for n in range(1, 21))
        handler = here.handlers[0]
        assert [p.packet_id for p in (await handler.wait(PublishBatch)).publishes] == list(range(1, 21))
        assert handler.connection.peer.loopback
        assert handler.connection.peer.address == "127.0.0.1"
        writer.write(encode(packets.Disconnect()))
        assert await asyncio.wait_for(handler.closed, 5) == ("disconnect", False)
        assert isinstance(handler.events[-1], Disconnected)
        assert await reader.read() == b""
        writer.close()
    assert here.counters.opened.child("tcp").value == 1


async def test_an_abrupt_end_and_a_violation_leave_the_will() -> None:
    """A socket that ends without DISCONNECT and a broken rule both make the will due; a refused client never does."""
    async with world() as here:
        reader, writer = await here.open(packets.Connect("dev", True, 60, will=WILL))
        assert await answer(reader, 4) == b"\x20\x02\x00\x00"  # closing with unread input would be a reset, not an end
        writer.close()
        assert await asyncio.wait_for(here.handlers[0].closed, 5) == ("peer_closed", True)
        reader, _ = await here.open(packets.Connect("dev", True, 60, will=WILL), packets.Connect("dev", True, 60))
        assert await answer(reader, 4) == b"\x20\x02\x00\x00"
        assert await reader.read() == b""
        assert await asyncio.wait_for(here.handlers[1].closed, 5) == ("unexpected_packet", True)
        assert isinstance(here.handlers[1].events[-1], Violated)
        assert here.counters.violations.child("unexpected_packet").value == 1


async def _until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0)


async def test_refusal_is_written_before_the_close() -> None:
    """The client receives the CONNACK with its code, then the socket ends, without a will."""
    async with world(accept=False) as here:
        reader, _ = await here.open(packets.Connect("dev", True, 60, will=WILL))
        await _until(lambda: here.handlers)
        handler = here.handlers[0]
        await handler.wait(ConnectRequested)
        handler.connection.session.answers.refuse(0x87)
        handler.connection.flush()
        assert await reader.read() == b"\x20\x02\x00\x05"
        assert await asyncio.wait_for(handler.closed, 5) == ("connect_refused", False)


async def test_a_client_that_waits_for_acceptance_is_not_read() -> None:
    """What it sends before its CONNACK stays in the kernel beyond 64 KB, and arrives complete afterwards."""
    publishes = [packets.Publish(b"a", bytes(1000), 1, False, False, n + 1) for n in range(1000)]
    async with world(accept=False) as here:
        reader, writer = await here.open(packets.Connect("dev", True, 60), *publishes)
        await _until(lambda: here.handlers)
        handler = here.handlers[0]
        await handler.wait(ConnectRequested)
        for _ in range(20):
            await asyncio.sleep(0)
        assert here.counters.bytes_in.value <= 65_536
        handler.connection.session.answers.accept(False)
        handler.connection.flush()
        assert await answer(reader, 4 + 4 * 1000)
        assert sum(len(e.publishes) for e in handler.events if isinstance(e, PublishBatch)) == 1000
        writer.close()


async def test_slow_reader_stops_deliveries_and_the_rest_waits() -> None:
    """Above the mark the handler is paused, and resumed when the client reads."""
    async with world(output_bytes_max=65_536) as here:
        reader, writer = await here.open(packets.Connect("dev", True, 60))
        assert await answer(reader, 4)
        handler = here.handlers[0]
        connection = handler.connection
        sent = 0
        while connection.writable:
            connection.session.deliveries.deliver(b"t", bytes(60_000), 0, False, False, None)
            connection.flush()
            sent += 1
            await asyncio.sleep(0)
        assert handler.writable == [False]
        await answer(reader, sent * 60_007)
        await asyncio.wait_for(_until(lambda: handler.writable == [False, True]), 5)
        writer.close()


async def test_client_that_never_reads_is_not_read() -> None:
    """It pings without reading the answers: these are bounded, then the client is no longer read.

    An asyncio stream would read some of them by itself, and the kernel would buffer megabytes for the client.
    """
    loop = asyncio.get_running_loop()
    async with world(output_bytes_max=4_096) as here:
        (listening,) = here.listener._servers
        listening.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", here.port))
        await loop.sock_sendall(client, encode(packets.Connect("dev", True, 0)))
        await _until(lambda: here.handlers)
        ping = encode(packets.Pingreq()) * 32_768

        async def flood() -> None:
            while True:
                await loop.sock_sendall(client, ping)

        flooding = asyncio.ensure_future(flood())
        await asyncio.wait_for(_until(lambda: here.counters.reads_paused.value), 20)
        read = here.counters.bytes_in.value
        for _ in range(50):
            await asyncio.sleep(0)
        assert here.counters.bytes_in.value == read
        assert here.counters.reads_paused.value == 1
        flooding.cancel()
        client.close()
        assert (await asyncio.wait_for(here.handlers[0].closed, 5))[0] in ("connection_error", "peer_closed", "aborted")


async def test_paused_reading_keeps_the_connection_alive() -> None:
    """While this side does not read, the client's silence does not count; afterwards it does again."""
    async with world() as here:
        reader, _ = await here.open(packets.Connect("dev", True, 2))
        assert await answer(reader, 4)
        handler = here.handlers[0]
        handler.connection.pause_reading()
        here.clock.advance_ms(60_000)
        here.listener._shared.ring.expire(here.clock.monotonic_ns() // 1_000_000)
        assert handler.connection.next_deadline_ms() > here.clock.monotonic_ns() // 1_000_000
        handler.connection.resume_reading()
        here.clock.advance_ms(4_000)
        handler.connection.expire()
        assert await asyncio.wait_for(handler.closed, 5) == ("keep_alive_timeout", False)


async def test_a_client_with_unread_bytes_is_not_cut() -> None:
    """It was not silent: this side had no time to read. Its silence counts once there is nothing to read."""
    async with world() as here:
        reader, writer = await here.open(packets.Connect("dev", True, 2))
        assert await answer(reader, 4)
        handler = here.handlers[0]
        here.clock.advance_ms(2_900)
        os.write(writer.get_extra_info("socket").fileno(), b"\xc0\0")  # nothing reads it within this turn
        here.clock.advance_ms(2_000)
        handler.connection.expire()
        assert await answer(reader, 2) == b"\xd0\0"
        handler.connection.expire()
        assert not handler.closed.done()
        here.clock.advance_ms(3_000)
        handler.connection.expire()
        assert await asyncio.wait_for(handler.closed, 5) == ("keep_alive_timeout", False)


async def test_acknowledgements_and_deliveries_leave_in_one_write() -> None:
    """All output of a loop turn is one segment on the wire and frees the window."""
    async with world() as here:
        reader, writer = await here.open(packets.Connect("dev", True, 60))
        assert await answer(reader, 4)
        connection = here.handlers[0].connection
        for n in range(3):
            connection.session.deliveries.deliver(b"t", b"%d" % n, 1, False, False, n)
            connection.flush()
        assert await asyncio.wait_for(reader.read(1000), 5) == b"".join(
            encode(packets.Publish(b"t", b"%d" % n, 1, False, False, n + 1)) for n in range(3)
        )
        writer.write(b"".join(encode(packets.Puback(n)) for n in (1, 2, 3)))
        assert (await here.handlers[0].wait(Acknowledged)).tokens == [0, 1, 2]
        writer.close()


async def test_close_twice_reports_once() -> None:
    """The owner may close at any time; `on_closed` is called once, later."""
    async with world() as here:
        reader, _ = await here.open(packets.Connect("dev", True, 60, will=WILL))
        assert await answer(reader, 4)
        handler = here.handlers[0]
        handler.connection.close("taken_over")
        handler.connection.close("again")
        assert not handler.closed.done()
        assert await asyncio.wait_for(handler.closed, 5) == ("taken_over", True)
        handler.connection.flush()
        assert await reader.read() == b""


@pytest.mark.parametrize(
    "story",
    [
        test_connect_publish_acknowledge_disconnect,
        test_refusal_is_written_before_the_close,
        test_a_client_that_waits_for_acceptance_is_not_read,
        test_slow_reader_stops_deliveries_and_the_rest_waits,
        test_close_twice_reports_once,
    ],
)
def test_the_same_on_uvloop(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """uvloop has transports of its own; these are the tests that depend on them most."""
    uvloop = pytest.importorskip("uvloop")
    uvloop.run(asyncio.wait_for(story(), 30))


async def test_a_client_that_left_before_acceptance_is_noticed_when_checked() -> None:
    """Nothing is read from it meanwhile, so nothing else would notice."""
    async with world(accept=False) as made:
        _, writer = await made.open(packets.Connect("a", True, 0), b"more")
        connection = made.handlers[0].connection if made.handlers else None
        while connection is None or not made.handlers[0].events:
            await asyncio.sleep(0.001)
            connection = made.handlers[0].connection if made.handlers else None
        assert not connection.peer_left()
        writer.close()
        await writer.wait_closed()
        while not connection.peer_left():
            await asyncio.sleep(0.001)
        assert connection.close_reason is None
        connection.close("left")
        assert connection.peer_left()


class Noted(Written):
    """Counts its writes and requests one more on demand."""

    def __init__(self, shared: LoopState) -> None:
        self.shared = shared
        self.writes = 0
        self.again = self.fails = self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def write_now(self) -> None:
        self.writes += 1
        if self.fails:
            raise ValueError("broken")
        if self.again:
            self.again = False
            self.shared.write_later(self)


async def test_writes_happen_at_the_end_of_the_turn() -> None:
    """Output requested during a turn is written once, after everything that is due; what a write requests, once
    more."""
    shared = LoopState(asyncio.get_running_loop(), ManualClock(monotonic_ns=7_000_000), FrontCounters(Registry()))
    assert shared.now_ms() == 7
    assert len(shared.buffer) == READ_BUFFER_BYTES
    one, two = Noted(shared), Noted(shared)
    one.again = True
    shared.write_later(one)
    shared.write_later(two)
    seen: list[int] = []
    soon(lambda: (seen.append(one.writes), soon(lambda: seen.append(one.writes))))
    assert (one.writes, two.writes) == (0, 0)
    await asyncio.sleep(0)
    assert seen == [0, 0]
    assert (one.writes, two.writes) == (2, 1)
    shared.close()


async def test_a_failing_connection_is_cut_and_the_others_are_written() -> None:
    """The loop's exception handler is called."""
    loop = asyncio.get_running_loop()
    heard: list[Any] = []
    loop.set_exception_handler(lambda _, context: heard.append(context["exception"]))
    shared = LoopState(loop, ManualClock(), FrontCounters(Registry()))
    bad, good = Noted(shared), Noted(shared)
    bad.fails = True
    shared.write_later(bad)
    shared.write_later(good)
    await asyncio.sleep(0)
    assert (bad.aborted, good.aborted, good.writes) == (True, False, 1)
    assert [type(error) for error in heard] == [ValueError]
    shared.close()


def test_a_connection_has_all_attributes_of_its_interface() -> None:
    """Attributes and methods; what `__init__` sets is among the slots."""
    wanted = {name for name in (*ClientConnection.__annotations__, *vars(ClientConnection)) if not name.startswith("_")}
    assert len(wanted) >= 7
    assert wanted <= set(dir(MqttConnection)), wanted - set(dir(MqttConnection))
