"""A replica's socket: frames go on as they come, and every end has its reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from broker.replication.frames import Ack, Frame, Greeting, encode_ack, encode_greeting
from broker.replication.ha_client import ReplicationLink
from remoting.protocol.errors import RemoteViolation
from remoting.transport.turn import soon

GREETING = Greeting(bytes(16))
Received = Callable[[Frame], str]


@asynccontextmanager
async def linked(
    received: Received, silence_s: float = 60.0
) -> AsyncIterator[tuple[ReplicationLink, asyncio.StreamWriter]]:
    """A link, and the master's end of its socket."""
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), "127.0.0.1", 0)
    link = ReplicationLink(lambda each: each.write(b"opened"), received, silence_s)
    await asyncio.get_running_loop().create_connection(lambda: link, *server.sockets[0].getsockname())
    async with asyncio.timeout(60):
        writer = await accepted
        yield link, writer
    link.abort()
    writer.transport.abort()
    server.close()


async def test_frames_are_handed_on_until_one_is_not_taken() -> None:
    """Whoever takes them says why it is over; what stands behind is nobody's."""
    got: list[Frame] = []

    def received(frame: Frame) -> str:
        got.append(frame)
        return "enough" if len(got) == 2 else ""

    async with linked(received) as (link, writer):
        writer.write(3 * encode_greeting(GREETING))
        assert await link.ended == "enough"
    assert got == [GREETING, GREETING]


async def test_what_a_frame_asks_for_at_the_end_of_the_turn_is_done_in_it() -> None:
    """No round of the loop between a part and its flush."""
    done: list[str] = []

    def received(_frame: Frame) -> str:
        soon(done.append, "flushed")
        asyncio.get_running_loop().call_soon(done.append, "another round")
        return ""

    async with linked(received) as (_, writer):
        writer.write(encode_greeting(GREETING))
        while len(done) < 2:
            await asyncio.sleep(0)
    assert done == ["flushed", "another round"]


@pytest.mark.parametrize("error", [ValueError("no"), RemoteViolation("a part too many")])
async def test_an_error_is_for_whoever_waits(error: Exception) -> None:
    """It ends the connection."""

    def received(_frame: Frame) -> str:
        raise error

    async with linked(received) as (link, writer):
        writer.write(encode_greeting(GREETING))
        with pytest.raises(type(error)):
            await link.ended


async def test_what_a_master_does_not_say_is_a_violation() -> None:
    """The kinds of the other side among it."""
    async with linked(lambda _: "") as (link, writer):
        writer.write(encode_ack(Ack(1, 2)))
        with pytest.raises(RemoteViolation):
            await link.ended


async def test_silence_ends_it() -> None:
    """A master says something now and then."""
    async with linked(lambda _: "", silence_s=0.01) as (link, _):
        with pytest.raises(TimeoutError):
            await link.ended


async def test_a_master_that_goes_says_nothing() -> None:
    """Nor does a link that has ended write any more."""
    async with linked(lambda _: "") as (link, writer):
        writer.write_eof()
        assert await link.ended == "the master closed the connection"
        link.write(b"too late")


async def test_an_end_made_here_has_its_reason() -> None:
    """The first one counts."""
    async with linked(lambda _: "") as (link, _):
        link.abort("elsewhere")
        link.abort("again")
        assert await link.ended == "elsewhere"
