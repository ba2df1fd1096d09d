"""Sockets that break rules at a real port (listener, connection, call): each ends alone, and is counted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import grpc
import pytest

from grpc_proxy.config import GrpcLimitsConfig
from grpc_proxy.http2.frames import END_HEADERS, END_STREAM, Kind
from grpc_proxy.http2.grpc_form import framed
from grpc_proxy.listening.call import CallRules
from grpc_proxy.listening.connection import DEADLINE_GRACE_S
from grpc_proxy.listening.listener import SWEEP_S
from grpc_proxy.stubs import service as s
from tests.support.replication import until
from tests.unit.grpc_proxy.conftest import GROUP, METADATA, ProxyBench, message
from tests.unit.grpc_proxy.http2.frames_of_client import HELLO, REQUEST_FIELDS, data, frame, headers, number

IDENTITY = (*REQUEST_FIELDS, (b"x-mq-client-id", b"raw"))
CALLS_ENDED, CONNECTIONS_ENDED = "rocketmq_grpc_calls_ended_total", "rocketmq_grpc_connections_ended_total"


class RawClient:
    """A socket that sends frames."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def until(self, kind: int, stream_id: int) -> tuple[int, bytes]:
        """(flags, payload) of the next frame of this kind."""
        async with asyncio.timeout(20):
            while True:
                found = await self.reader.readexactly(9)
                payload = await self.reader.readexactly(int.from_bytes(found[:3], "big"))
                if (found[3], int.from_bytes(found[5:9], "big")) == (kind, stream_id):
                    return found[4], payload

    async def ended(self) -> None:
        """Read to the end; with frames of ours unread there, the end is a reset."""
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionResetError):
                while await self.reader.read(65_536):
                    pass


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncIterator[ProxyBench]:
    bench = ProxyBench(tmp_path / "data", handshake_ms_max=500, idle_ms_max=1_000)
    await bench.start()
    yield bench
    await bench.stop()


async def test_a_call_in_frames_is_answered(proxied):
    async with RawClient(proxied.app.port) as client:
        client.writer.write(HELLO + headers(1, IDENTITY) + data(1, framed(b""), end=True))
        flags, block = await client.until(Kind.HEADERS, 1)
        assert (flags, block[:1]) == (END_HEADERS, b"\x88")
        assert len((await client.until(Kind.DATA, 1))[1]) > 5
        assert (await client.until(Kind.HEADERS, 1))[0] == END_HEADERS | END_STREAM


@pytest.mark.parametrize(
    ("fields", "payload", "reason"),
    [
        ([*IDENTITY[:2], (b":path", b"/none"), *IDENTITY[3:]], framed(b""), "unknown_method"),
        ([(name, b"text/plain" if name == b"content-type" else text) for name, text in IDENTITY], b"", "no_grpc"),
        ([*IDENTITY, (b"grpc-timeout", b"soon")], framed(b""), "timeout"),
        ([*IDENTITY, (b"grpc-encoding", b"zstd")], framed(b""), "compression"),
        (IDENTITY, b"", "no_message"),
        (IDENTITY, framed(b"a") + framed(b"b"), "no_message"),
        (IDENTITY, framed(b"abc")[:-1], "no_message"),
    ],
)
async def test_calls_that_are_none_end_with_a_status(proxied, fields, payload, reason):
    async with RawClient(proxied.app.port) as client:
        client.writer.write(HELLO + headers(1, fields) + data(1, payload, end=True))
        flags, _block = await client.until(Kind.HEADERS, 1)
        assert flags & END_STREAM
    assert proxied.counted(CALLS_ENDED) == {reason: 1}


async def test_rapid_resets_end_the_connection_and_nobody_else(tmp_path):
    bench = ProxyBench(tmp_path / "data", limits=GrpcLimitsConfig(resets_max=50))
    await bench.start()
    async with RawClient(bench.app.port) as client:
        client.writer.write(HELLO)
        for stream_id in range(1, 203, 2):
            client.writer.write(headers(stream_id, IDENTITY) + frame(Kind.RST_STREAM, 0, stream_id, number(8)))
        await client.ended()
    assert bench.counted(CONNECTIONS_ENDED) == {"enhance_your_calm": 1}
    assert (await bench.send(message())).status.code == 20_000
    await bench.stop()


async def test_sockets_without_http_2_and_without_calls_are_closed(strict):
    port = strict.app.port
    async with RawClient(port) as silent, RawClient(port) as idle, RawClient(port) as web:
        idle.writer.write(HELLO)
        web.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await asyncio.gather(silent.ended(), idle.ended(), web.ended())
    assert strict.counted(CONNECTIONS_ENDED) == {"handshake": 1, "idle": 1, "protocol_error": 1}


async def test_a_call_whose_client_forgets_its_deadline_is_ended(proxied):
    """Telemetry without a word: the handler waits until the sweep ends it."""
    path = [*IDENTITY[:2], (b":path", IDENTITY[2][1].replace(b"Heartbeat", b"Telemetry")), *IDENTITY[3:]]
    async with RawClient(proxied.app.port) as client:
        client.writer.write(HELLO + headers(1, [*path, (b"grpc-timeout", b"1m")]))
        async with asyncio.timeout(SWEEP_S + DEADLINE_GRACE_S + 10):
            assert (await client.until(Kind.HEADERS, 1))[0] & END_STREAM
    assert proxied.counted(CALLS_ENDED) == {"deadline": 1}


async def test_large_answers_and_requests_pass_the_windows(proxied):
    bodies = [bytes(1_000_000) + b"%d" % number for number in range(4)]
    for body in bodies:
        await proxied.send(message(body))
    assert sorted(one.body for one in await proxied.messages()) == bodies


async def test_compressed_requests_are_read(proxied):
    call = proxied.channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage")
    raw = s.SendMessageRequest(messages=[message(b"z" * 10_000)]).SerializeToString()
    found = s.SendMessageResponse.FromString(await call(raw, metadata=METADATA, compression=grpc.Compression.Gzip))
    assert found.status.code == 20_000


async def test_waiting_for_the_last_call():
    rules = CallRules({}, 1, 1, 1, lambda _reason: None)
    rules.begun()
    waiting = asyncio.ensure_future(rules.none_open())
    await asyncio.sleep(0)
    assert not waiting.done()
    rules.over()
    await asyncio.wait_for(waiting, 5)


async def test_a_socket_beyond_connections_max_is_closed_at_once(tmp_path):
    bench = ProxyBench(tmp_path / "data", limits=GrpcLimitsConfig(connections_max=2))
    await bench.start()
    async with RawClient(bench.app.port) as first, RawClient(bench.app.port) as second:
        for client in (first, second):
            client.writer.write(HELLO)
            await client.until(Kind.SETTINGS, 0)
        async with RawClient(bench.app.port) as third:
            await third.ended()
        assert bench.counted(CONNECTIONS_ENDED) == {"connections_max": 1}
        first.writer.write(headers(1, IDENTITY) + data(1, framed(b""), end=True))
        await first.until(Kind.DATA, 1)
    await bench.stop()


async def test_incomplete_requests_beyond_held_bytes_max_end_their_call(tmp_path):
    limits = GrpcLimitsConfig(held_bytes_max=100_000, request_bytes_max=100_000)
    bench = ProxyBench(tmp_path / "data", limits=limits)
    await bench.start()
    part = (b"\0" + number(90_000) + bytes(60_000))[:60_000]
    frames = [part[at : at + 16_000] for at in range(0, len(part), 16_000)]
    async with RawClient(bench.app.port) as first, RawClient(bench.app.port) as second:
        for client in (first, second):
            client.writer.write(HELLO + headers(1, IDENTITY) + b"".join(data(1, each) for each in frames))
            if client is second:
                assert (await client.until(Kind.HEADERS, 1))[0] & END_STREAM
        assert bench.counted(CALLS_ENDED) == {"held_bytes_max": 1}
        second.writer.write(headers(3, IDENTITY) + data(3, framed(b""), end=True))
        await second.until(Kind.DATA, 3)
    await bench.stop()


async def test_a_client_that_takes_nothing_for_stall_ms_max_is_cut_off(tmp_path):
    bench = ProxyBench(tmp_path / "data", stall_ms_max=1_000)
    await bench.start()
    no_window = frame(Kind.SETTINGS, 0, 0, b"\0\4" + number(0))
    async with RawClient(bench.app.port) as client:
        client.writer.write(HELLO + no_window + headers(1, IDENTITY) + data(1, framed(b""), end=True))
        await client.ended()
    assert bench.counted(CONNECTIONS_ENDED) == {"slow_reader": 1}
    await bench.stop()


async def test_data_waits_in_its_calls_while_the_socket_is_full(tmp_path):
    """However wide a client's windows are: slow and quick readers get all of it, one that never reads is slow."""
    bench = ProxyBench(tmp_path / "data", stall_ms_max=1_000, limits=GrpcLimitsConfig(output_bytes_max=65_536))
    await bench.start()
    for _ in range(16):
        await bench.send(message(bytes(1_000_000)))
    answers = await asyncio.gather(*(bench.receive(batch_size=4) for _ in range(4)))
    bodies = [one.message.body for several in answers for one in several if one.HasField("message")]
    assert [len(body) for body in bodies] == [1_000_000] * 16
    await bench.revive(31_000)
    path = [*IDENTITY[:2], (b":path", IDENTITY[2][1].replace(b"Heartbeat", b"ReceiveMessage")), *IDENTITY[3:]]
    queue = {"topic": {"name": "orders"}, "id": -1}
    asked = s.ReceiveMessageRequest(group=GROUP, message_queue=queue, batch_size=16,
                                    invisible_duration={"seconds": 30}).SerializeToString()  # fmt: skip
    window = frame(Kind.SETTINGS, 0, 0, b"\0\4" + number(2**31 - 1))
    window += frame(Kind.WINDOW_UPDATE, 0, 0, number(2**31 - 65_536))
    async with RawClient(bench.app.port) as client:
        client.writer.write(HELLO + window + headers(1, path) + data(1, framed(asked), end=True))
        await until(lambda: bench.counted(CONNECTIONS_ENDED) == {"slow_reader": 1}, "it to be cut off")
    await bench.stop()


async def test_a_client_that_asks_for_more_and_more_headers_and_takes_none_is_cut_off(tmp_path):
    """They need no window: only `output_bytes_max` bounds what waits for it."""
    bench = ProxyBench(tmp_path / "data", limits=GrpcLimitsConfig(output_bytes_max=65_536))
    await bench.start()
    none = [*IDENTITY[:2], (b":path", b"/none"), *IDENTITY[3:]]
    async with RawClient(bench.app.port) as client:
        client.writer.write(HELLO)
        for at in range(200_000):
            if client.writer.transport.is_closing() or bench.counted(CONNECTIONS_ENDED):
                break
            client.writer.write(headers(2 * at + 1, none) + data(2 * at + 1, framed(b""), end=True))
            if at % 100 == 99:
                await asyncio.sleep(0)
        await until(lambda: bench.counted(CONNECTIONS_ENDED) == {"output_bytes_max": 1}, "it to be cut off")
    assert (await bench.send(message())).status.code == 20_000
    await bench.stop()
