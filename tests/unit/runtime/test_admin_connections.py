"""Limits of the administration port's connections; what it answers is in test_admin."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from runtime import admin as admin_protocol
from runtime.admin import (
    ANSWERS_PER_LOOP_TURN,
    HEAD_BYTES_MAX,
    SERVER_NAME,
    Answer,
    PageConnections,
    Request,
    text_answer,
)

LARGE = 32 * 1_048_576
"""More than sockets of this machine hold on their way."""
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Port:
    """A port that shows one page."""

    def __init__(self, size: int = 1) -> None:
        self.size, self.asked, self.malformed = size, 0, 0
        self.connections = PageConnections(self.page, self.bad)
        self.server: asyncio.Server | None = None

    def page(self, request: Request, _address: str) -> Answer:
        self.asked += 1
        if request.path == "/broken":
            raise RuntimeError("no page")
        return text_answer(200, "x" * self.size)

    def bad(self) -> None:
        self.malformed += 1

    async def open(self) -> Streams:
        loop = asyncio.get_running_loop()
        if self.server is None:
            self.server = await loop.create_server(self.connections, "127.0.0.1", 0)
        return await asyncio.open_connection(*self.server.sockets[0].getsockname())

    async def closed(self, streams: Streams) -> None:
        """Return when the server has ended the connection."""
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(streams[0].read(), 20) == b""
        streams[1].close()


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port()
    yield made
    made.connections.close()
    if made.server is not None:
        made.server.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_served_connection_is_kept_for_its_keep_alive_time_only(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of the first request does not end it, the pause after it does."""
    monkeypatch.setattr(admin_protocol, "FIRST_REQUEST_S_MAX", 300.0)
    monkeypatch.setattr(admin_protocol, "KEEP_ALIVE_S", 400.0)
    loop = asyncio.get_running_loop()
    call_later, timers = loop.call_later, []

    def noted(seconds: float, callback: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
        handle = call_later(seconds, callback, *arguments)
        timers.append((seconds, handle, callback))
        return handle

    monkeypatch.setattr(loop, "call_later", noted)
    reader, writer = await port.open()
    for _ in range(2):
        writer.write(REQUEST)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\nx\n"), 20)
        assert f"Server: {SERVER_NAME}".encode() in head
    limits = [(seconds, handle.cancelled()) for seconds, handle, _ in timers if seconds >= 300.0]
    assert limits == [(300.0, True), (400.0, True), (400.0, False)]
    next(callback for _, handle, callback in reversed(timers) if not handle.cancelled())()
    await port.closed((reader, writer))


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_client_without_a_request_is_cut(port: Port, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """Silence and an unfinished request have the same deadline."""
    monkeypatch.setattr(admin_protocol, "FIRST_REQUEST_S_MAX", 0.2)
    streams = await port.open()
    streams[1].write(sent)
    await port.closed(streams)
    assert port.asked == 0


async def test_a_header_line_now_and_then_does_not_extend_it(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_protocol, "FIRST_REQUEST_S_MAX", 0.5)
    reader, writer = await port.open()
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
    ended = asyncio.ensure_future(port.closed((reader, writer)))
    async with asyncio.timeout(20):
        while not ended.done():
            writer.write(b"X-A: b\r\n")
            await asyncio.sleep(0.02)
    await ended


async def test_a_head_has_a_maximum_size(port: Port) -> None:
    """A longer one is refused, and not a byte more of it is buffered."""
    reader, writer = await port.open()
    writer.write(REQUEST[:-2] + b"X: " + b"a" * HEAD_BYTES_MAX)
    assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 431 ")
    assert (port.asked, port.malformed) == (0, 1)
    writer.close()


async def test_an_answer_that_is_not_read_stops_the_reading_and_has_a_deadline(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests sent in advance are not answered into memory, and a client that reads nothing is cut."""
    monkeypatch.setattr(admin_protocol, "ANSWER_S_MAX", 0.5)
    port.size = LARGE
    reader, writer = await port.open()
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(REQUEST * 300)
    await until(lambda: port.asked == 1)
    await until(lambda: not len(port.connections))
    assert port.asked == 1
    writer.close()


async def test_requests_in_advance_are_answered_one_after_the_other(port: Port) -> None:
    """Also when the answers are larger than what a socket accepts at once."""
    port.size = LARGE // 8
    reader, writer = await port.open()
    writer.write(REQUEST * 500)
    for count in range(1, 6):
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        assert b"200 OK" in head
        assert len(await asyncio.wait_for(reader.readexactly(port.size + 1), 60)) == port.size + 1
        assert port.asked <= count + 2
    writer.close()
    await until(lambda: not len(port.connections))


async def test_one_too_many_ends_the_one_served_the_longest_ago(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no client can lock out the others by holding connections open."""
    monkeypatch.setattr(admin_protocol, "CONNECTIONS_MAX", 3)
    held = [await port.open() for _ in range(3)]
    held[0][1].write(REQUEST)
    await asyncio.wait_for(held[0][0].readuntil(b"x\n"), 20)
    probe = await port.open()
    await port.closed(held[1])
    for reader, writer in (probe, held[0]):
        writer.write(REQUEST)
        assert (await asyncio.wait_for(reader.readuntil(b"x\n"), 20)).startswith(b"HTTP/1.1 200")
    assert len(port.connections) == 3
    for _, writer in (probe, held[0], held[2]):
        writer.close()


@pytest.mark.parametrize(
    ("request_head", "status", "with_body"),
    [
        (b"HEAD / HTTP/1.1\r\nHost: x", 200, False), (b"POST / HTTP/1.1\r\nHost: x", 405, True),
        (b"GET /broken HTTP/1.1\r\nHost: x", 500, True), (b"GET / HTTP/1.1", 400, True), (b"\x16\x03", 400, True),
    ],
)  # fmt: skip
async def test_methods_and_failures(port: Port, request_head: bytes, status: int, with_body: bool) -> None:
    reader, writer = await port.open()
    writer.write(request_head + b"\r\nConnection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert answer.endswith(b"\r\n\r\n") is not with_body
    writer.close()


async def test_requests_in_advance_do_not_delay_others(port: Port) -> None:
    """One page per turn of the loop, and nothing more is read before the last one had its turn."""
    streams = await port.open()
    await until(lambda: len(port.connections) == 1)
    (connection,) = port.connections._open
    connection.get_buffer(-1)[: 10 * len(REQUEST)] = REQUEST * 10
    connection.buffer_updated(10 * len(REQUEST))
    for count in range(10):
        assert port.asked == count
        await asyncio.sleep(0)
    streams[1].write(REQUEST)
    await until(lambda: port.asked == 11)
    streams[1].close()


async def test_a_turn_of_the_loop_answers_few_of_many_connections(port: Port) -> None:
    """The loop accepts one connection per turn: a long turn would keep a supervisor waiting for as many turns."""
    count = 3 * ANSWERS_PER_LOOP_TURN
    streams = [await port.open() for _ in range(count)]
    await until(lambda: len(port.connections) == count)
    for connection in list(port.connections._open):
        connection.get_buffer(-1)[: 2 * len(REQUEST)] = REQUEST * 2
        connection.buffer_updated(2 * len(REQUEST))
    for turn in range(6):
        assert port.asked == turn * ANSWERS_PER_LOOP_TURN
        await asyncio.sleep(0)
    assert port.asked == 2 * count
    for _reader, writer in streams:
        writer.close()
