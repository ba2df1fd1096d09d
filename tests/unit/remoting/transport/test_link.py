"""One socket: one write per turn, limits of output, violations, the order of the end."""

from __future__ import annotations

import asyncio
import socket

import pytest

from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import FrameDecoder, encode_frame
from remoting.transport.link import FrameLink, LinkSettings, run_close_callback


class Recorder(FrameLink):
    def __init__(self, settings, *, pauses=True, reply=None):
        super().__init__(settings)
        self.pauses_reading = pauses
        self.reply = reply
        self.got = []
        self.ends = []

    def command_received(self, command):
        self.got.append(command.code)
        if self.reply is not None:
            self.send(command.reply(body=self.reply))

    def link_lost(self, reason):
        self.ends.append(reason)


@pytest.fixture
async def pair():
    """A link and the raw, non-blocking socket of its peer, with small kernel buffers."""
    opened = []

    async def make(settings=None, **options):
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: Recorder(settings or LinkSettings(), **options), sock=ours)
        opened.append((link, theirs))
        return link, theirs

    yield make
    for link, theirs in opened:
        link.abort("test over")
        theirs.close()


async def ended(link):
    gone = asyncio.Event()
    link.on_close(lambda reason: gone.set())
    await gone.wait()


async def test_all_of_one_turn_leaves_in_one_write(pair):
    link, theirs = await pair()
    for code in range(10):
        link.send(Command(code))
    assert link._counters.writes == 0
    data = await asyncio.get_running_loop().sock_recv(theirs, 65_536)
    assert [command.code for command in FrameDecoder().feed(data)] == list(range(10))
    counters = link._counters
    assert (counters.writes, counters.frames_out, counters.bytes_out) == (1, 10, len(data))


async def test_frames_in_any_pieces(pair):
    link, theirs = await pair()
    data = b"".join(encode_frame(Command(code, body=bytes(1_000))) for code in range(5))
    for at in range(0, len(data), 333):
        await asyncio.get_running_loop().sock_sendall(theirs, data[at : at + 333])
    while len(link.got) < 5:
        await asyncio.sleep(0)
    assert link.got == [0, 1, 2, 3, 4]
    assert (link._counters.frames_in, link._counters.bytes_in) == (5, len(data))


async def test_a_slow_peer_is_not_read_until_it_takes_its_output(pair):
    link, theirs = await pair(LinkSettings(output_bytes_max=20_000), reply=bytes(30_000))
    requests = b"".join(encode_frame(Command(code, opaque=code)) for code in range(20))
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(theirs, requests)
    while link.writable:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert len(link.got) < 20
    assert link._counters.paused >= 1
    decoder, answers = FrameDecoder(), []
    while len(answers) < 20:
        answers += decoder.feed(await loop.sock_recv(theirs, 65_536))
    assert [answer.opaque for answer in answers] == list(range(20))
    assert link.got == list(range(20))
    while not link.writable:
        await asyncio.sleep(0)


async def test_a_client_link_goes_on_reading(pair):
    link, theirs = await pair(LinkSettings(output_bytes_max=1_000), pauses=False, reply=bytes(700))
    await asyncio.get_running_loop().sock_sendall(theirs, b"".join(encode_frame(Command(c)) for c in range(8)))
    while len(link.got) < 8:
        await asyncio.sleep(0)


async def test_a_peer_that_reads_nothing_is_cut(pair, caplog):
    link, _theirs = await pair(LinkSettings(output_bytes_max=10_000))
    for _ in range(20):
        link.send(Command(1, body=bytes(10_000)))
    await ended(link)
    assert link._counters.overruns == 1
    assert link.ends[0].startswith("overrun")
    assert "it reads nothing" in caplog.text


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(4) + b"\xff" * 20, b"\x00\x00\x00\x06\x07\x00\x00\x01{}"]
)
async def test_what_is_no_frame_closes_the_link(pair, garbage):
    link, theirs = await pair()
    await asyncio.get_running_loop().sock_sendall(theirs, encode_frame(Command(1)))
    while not link.got:
        await asyncio.sleep(0)
    await asyncio.get_running_loop().sock_sendall(theirs, garbage)
    await ended(link)
    assert link.ends[0].startswith("violation")
    assert link._counters.violations == 1
    assert link.got == [1]


async def test_the_end_flushes_then_calls_back_once(pair):
    link, theirs = await pair()
    order = []
    link.on_close(lambda reason: order.append(reason) or 1 // 0)
    link.on_close(order.append)
    link.send(Command(7))
    link.end("enough")
    link.end("again")
    link.send(Command(8))
    assert link.closed
    data = await asyncio.get_running_loop().sock_recv(theirs, 65_536)
    assert [command.code for command in FrameDecoder().feed(data)] == [7]
    await ended(link)
    assert order == ["enough", "enough"]
    assert link.ends == ["enough"]
    assert link._counters.sends_after_close == 1
    link.abort("late")


async def test_the_peers_end_says_so(pair):
    link, theirs = await pair()
    theirs.close()
    await ended(link)
    assert link.ends == ["closed by the other side"]


async def test_a_peer_that_takes_nothing_cannot_keep_a_closing_link(pair, monkeypatch):
    monkeypatch.setattr("remoting.transport.link.CLOSE_DEADLINE_SECONDS", 0.02)
    link, _theirs = await pair()
    link.send(Command(1, body=bytes(1_000_000)))
    link.end("enough")
    await ended(link)
    assert link.ends == ["enough"]


def test_a_failing_close_callback_is_logged(caplog):
    run_close_callback(lambda reason: 1 // 0, "why")
    assert "a close callback failed" in caplog.text
