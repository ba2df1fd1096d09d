"""Limits of the administration port's connections; what it answers is in test_admin_server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from runtime import http_port
from runtime.http_port import HEAD_BYTES_MAX, SERVER_NAME, HttpPort, bounded, connection_of, make_application

LARGE = 32 * 1_048_576
"""More than sockets of this machine hold on their way."""
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Port:
    """A port that shows one page, takes bodies, and has a stream."""

    def __init__(self, size: int = 1) -> None:
        self.size, self.asked, self.malformed = size, 0, 0
        self.bodies: list[bytes] = []
        self.leave = asyncio.Event()
        application = make_application()
        application.router.add_get("/", self.page)
        application.router.add_get("/broken", self.broken)
        application.router.add_post("/body", self.body)
        application.router.add_get("/stream", self.stream)
        self.http = HttpPort(application, self.bad)
        self.number = 0

    @property
    def count(self) -> int:
        assert self.http.connections is not None
        return len(self.http.connections)

    async def page(self, _request: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(text="x" * self.size + "\n")

    async def broken(self, _request: web.Request) -> web.Response:
        raise RuntimeError("no page")

    async def body(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        return web.Response(text="taken\n")

    async def stream(self, request: web.Request) -> web.StreamResponse:
        connection = connection_of(request)
        assert connection is not None
        connection.stream()
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begun")
        await self.leave.wait()
        return response

    def bad(self) -> None:
        self.malformed += 1

    async def open(self) -> Streams:
        if not self.number:
            self.number = await self.http.start("127.0.0.1", 0)
        return await asyncio.open_connection("127.0.0.1", self.number)

    async def closed(self, streams: Streams) -> None:
        """Return when the server has ended the connection."""
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(streams[0].read(), 20) == b""
        streams[1].close()


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    made = Port()
    yield made
    made.leave.set()
    await made.http.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def answered(streams: Streams, request: bytes = REQUEST, end: bytes = b"x\n") -> bytes:
    streams[1].write(request)
    return await asyncio.wait_for(streams[0].readuntil(end), 20)


async def test_a_served_connection_is_kept_for_its_keep_alive_time_only(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of the first request does not end it, the pause after it does."""
    monkeypatch.setattr(http_port, "KEEP_ALIVE_S", 0.3)
    streams = await port.open()
    for _ in range(2):
        assert f"Server: {SERVER_NAME}".encode() in await answered(streams)
    await port.closed(streams)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_client_without_a_request_is_cut(port: Port, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """Silence and an unfinished request have the same deadline."""
    monkeypatch.setattr(http_port, "FIRST_REQUEST_S_MAX", 0.2)
    streams = await port.open()
    streams[1].write(sent)
    await port.closed(streams)
    assert port.asked == 0


async def test_a_header_line_now_and_then_does_not_extend_it(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "FIRST_REQUEST_S_MAX", 0.5)
    reader, writer = await port.open()
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
    ended = asyncio.ensure_future(port.closed((reader, writer)))
    async with asyncio.timeout(20):
        while not ended.done():
            writer.write(b"X-A: b\r\n")
            await asyncio.sleep(0.02)
    await ended


async def test_a_slow_body_has_a_deadline(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not extend it."""
    monkeypatch.setattr(http_port, "REQUEST_S_MAX", 0.5)
    reader, writer = await port.open()
    writer.write(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
    ended = asyncio.ensure_future(port.closed((reader, writer)))
    async with asyncio.timeout(20):
        while not ended.done():
            writer.write(b"y")
            await asyncio.sleep(0.02)
    await ended
    assert port.bodies == []


async def test_a_head_has_a_maximum_size(port: Port) -> None:
    """A longer one is refused, and not a byte more of it is buffered."""
    reader, writer = await port.open()
    writer.write(REQUEST[:-2] + b"X: " + b"a" * HEAD_BYTES_MAX)
    head, _, body = (await asyncio.wait_for(reader.read(4_096), 20)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b"\r\nContent-Type: application/problem+json\r\n" in head
    assert json.loads(body)["reason"] == "head_too_large"
    assert (port.asked, port.malformed) == (0, 1)
    writer.close()


async def test_bodies_larger_than_the_buffer(port: Port) -> None:
    """With a length and in chunks, with what looks like the end of a head inside, and requests behind them."""
    whole = b"line\r\n\r\n" * 4_000
    streams = await port.open()
    head = b"POST /body HTTP/1.1\r\nHost: x\r\n"
    sent = head + b"Content-Length: %d\r\n\r\n" % len(whole) + whole + REQUEST
    assert b"taken\n" in await answered(streams, sent)
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (whole[:9_000], whole[9_000:])) + b"0\r\n\r\n"
    assert b"taken\n" in await answered(streams, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked + REQUEST)
    assert port.bodies == [whole, whole]
    assert port.asked == 2
    streams[1].close()


async def test_a_body_has_a_maximum_size(port: Port) -> None:
    streams = await port.open()
    sent = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (http_port.BODY_BYTES_MAX + 1)
    assert b" 413 " in await answered(streams, sent + b"y" * (http_port.BODY_BYTES_MAX + 1), b"\r\n\r\n")
    streams[1].close()


async def test_an_answer_that_is_not_read_stops_the_reading_and_has_a_deadline(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests sent in advance are not answered into memory, and a client that reads nothing is cut."""
    monkeypatch.setattr(http_port, "ANSWER_S_MAX", 0.5)
    port.size = LARGE
    reader, writer = await port.open()
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(REQUEST * 300)
    await until(lambda: port.asked == 1)
    await until(lambda: not port.count)
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
    await until(lambda: not port.count)


async def test_one_too_many_ends_the_one_served_the_longest_ago(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no client can lock out the others by holding connections open."""
    monkeypatch.setattr(http_port, "CONNECTIONS_MAX", 3)
    held = [await port.open() for _ in range(3)]
    await answered(held[0])
    probe = await port.open()
    await port.closed(held[1])
    for each in (probe, held[0]):
        assert (await answered(each)).startswith(b"HTTP/1.1 200")
    assert port.count == 3
    for _, writer in (probe, held[0], held[2]):
        writer.close()


async def test_a_stream_is_not_ended_for_others(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor by a time limit."""
    monkeypatch.setattr(http_port, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(http_port, "REQUEST_S_MAX", 0.05)
    stream = await port.open()
    await answered(stream, b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n", b"begun")
    for _ in range(3):
        other = await port.open()
        await answered(other)
    assert port.count == 2
    port.leave.set()
    await asyncio.wait_for(stream[0].readuntil(b"0\r\n\r\n"), 20)
    for each in (stream, other):
        each[1].close()
    await until(lambda: not port.count)


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
    assert int(answer.split(b" ", 2)[1]) == status
    assert f"Server: {SERVER_NAME}".encode() in answer
    assert answer.endswith(b"\r\n\r\n") is not with_body
    writer.close()


async def test_a_client_that_sends_in_advance_does_not_delay_others(port: Port) -> None:
    """Between two requests of a connection every other connection has its turn."""
    eager, other = await port.open(), await port.open()
    await answered(other)
    eager[1].write(REQUEST * 300)
    await until(lambda: port.asked > 1)
    await answered(other)
    assert port.asked < 300
    for each in (eager, other):
        each[1].close()


async def test_a_request_whose_client_has_left_is_no_failure() -> None:
    """Its turn comes after its connection has ended: nothing is asked of the page, and nothing is raised or logged."""
    asked = []

    async def page(request: web.Request) -> web.Response:
        asked.append(request)
        return web.Response()

    answer = await bounded(make_mocked_request("GET", "/status"), page)
    assert (answer.status, asked) == (400, [])
