"""One socket: one write per turn, limits of output, violations, the order of the end."""

from __future__ import annotations

import asyncio
import socket

import pytest

from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import FrameDecoder, encode_frame
from remoting.transport.link import FrameLink, LinkSettings, Output


class Socket:
    """A transport that keeps its input until it is released."""

    def __init__(self):
        self.writes = []
        self.waiting = 0
        self.high = None

    def set_write_buffer_limits(self, high):
        self.high = high

    def get_write_buffer_size(self):
        return self.waiting

    def write(self, data):
        self.writes.append(data)
        self.waiting += len(data)


async def test_one_write_a_turn_and_the_limit():
    told, overruns = [], []
    settings = LinkSettings(output_bytes_max=10)
    output = Output(settings, lambda: told.append(output.is_writable), overruns.append)
    output.add(b"early")
    output.flush()
    socket = Socket()
    output.begin(socket)
    assert socket.high == 10
    output.add(b"1")
    output.add(b"2")
    assert socket.writes == []
    await asyncio.sleep(0)
    assert socket.writes == [b"early12"]
    output.add(bytes(11))
    assert (output.is_writable, told, settings.counters.paused) == (False, [False], 1)
    output.flush()
    output.transport_full(True)
    assert not output.is_writable
    output.transport_full(False)
    assert (output.is_writable, told) == (True, [False, True, False, True])
    assert (settings.counters.writes, settings.counters.frames_out, settings.counters.bytes_out) == (2, 4, 18)


async def test_a_peer_that_takes_nothing_is_reported():
    overruns = []
    output = Output(LinkSettings(output_bytes_max=10), lambda: None, overruns.append)
    output.begin(Socket())
    for _ in range(8):
        output.add(bytes(10))
        output.flush()
    assert overruns == []
    output.add(b"1")
    assert overruns == []
    output.add(bytes(10))
    assert overruns == [91]
    output.clear()
    await asyncio.sleep(0)
    assert output.transport.waiting == 80


class Recorder:
    """Records the calls of its link."""

    def __init__(self, settings, *, pauses=True, reply=None):
        self.link = FrameLink(settings, self, pauses_reading=pauses)
        self.counters = settings.counters
        self.reply = reply
        self.got = []
        self.ends = []

    def link_made(self, own_address):
        self.own_address = own_address

    def command_received(self, command):
        self.got.append(command.code)
        if self.reply is not None:
            self.link.send(command.reply(body=self.reply))

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
        user = Recorder(settings or LinkSettings(), **options)
        await loop.create_connection(lambda: user.link, sock=ours)
        assert user.own_address is None, "a socket without a port"
        opened.append((user.link, theirs))
        return user, theirs

    yield make
    for link, theirs in opened:
        link.abort("test over")
        theirs.close()


async def ended(link):
    gone = asyncio.Event()
    link.on_close(lambda reason: gone.set())
    await gone.wait()


async def test_all_of_one_turn_leaves_in_one_write(pair):
    user, theirs = await pair()
    for code in range(10):
        user.link.send(Command(code))
    assert user.counters.writes == 0
    data = await asyncio.get_running_loop().sock_recv(theirs, 65_536)
    assert [command.code for command in FrameDecoder().feed(data)] == list(range(10))
    counters = user.counters
    assert (counters.writes, counters.frames_out, counters.bytes_out) == (1, 10, len(data))


async def test_frames_in_any_pieces(pair):
    user, theirs = await pair()
    data = b"".join(encode_frame(Command(code, body=bytes(1_000))) for code in range(5))
    for at in range(0, len(data), 333):
        await asyncio.get_running_loop().sock_sendall(theirs, data[at : at + 333])
    while len(user.got) < 5:
        await asyncio.sleep(0)
    assert user.got == [0, 1, 2, 3, 4]
    assert (user.counters.frames_in, user.counters.bytes_in) == (5, len(data))


async def test_a_slow_peer_is_not_read_until_it_takes_its_output(pair):
    user, theirs = await pair(LinkSettings(output_bytes_max=20_000), reply=bytes(30_000))
    requests = b"".join(encode_frame(Command(code, opaque=code)) for code in range(20))
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(theirs, requests)
    while user.link.writable:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert len(user.got) < 20
    assert user.counters.paused >= 1
    decoder, answers = FrameDecoder(), []
    while len(answers) < 20:
        answers += decoder.feed(await loop.sock_recv(theirs, 65_536))
    assert [answer.opaque for answer in answers] == list(range(20))
    assert user.got == list(range(20))
    while not user.link.writable:
        await asyncio.sleep(0)


async def test_a_client_link_goes_on_reading(pair):
    user, theirs = await pair(LinkSettings(output_bytes_max=1_000), pauses=False, reply=bytes(700))
    await asyncio.get_running_loop().sock_sendall(theirs, b"".join(encode_frame(Command(c)) for c in range(8)))
    while len(user.got) < 8:
        await asyncio.sleep(0)


async def test_a_peer_that_reads_nothing_is_cut(pair, caplog):
    user, _theirs = await pair(LinkSettings(output_bytes_max=10_000))
    for _ in range(20):
        user.link.send(Command(1, body=bytes(10_000)))
    await ended(user.link)
    assert user.counters.overruns == 1
    assert user.ends[0].startswith("overrun")
    assert "it reads nothing" in caplog.text


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(4) + b"\xff" * 20, b"\x00\x00\x00\x06\x07\x00\x00\x01{}"]
)
async def test_what_is_no_frame_closes_the_link(pair, garbage):
    user, theirs = await pair()
    await asyncio.get_running_loop().sock_sendall(theirs, encode_frame(Command(1)))
    while not user.got:
        await asyncio.sleep(0)
    await asyncio.get_running_loop().sock_sendall(theirs, garbage)
    await ended(user.link)
    assert user.ends[0].startswith("violation")
    assert user.counters.violations == 1
    assert user.got == [1]


async def test_the_end_flushes_then_calls_back_once(pair):
    user, theirs = await pair()
    order = []
    user.link.on_close(lambda reason: order.append(reason) or 1 // 0)
    user.link.on_close(order.append)
    user.link.send(Command(7))
    user.link.end("enough")
    user.link.end("again")
    user.link.send(Command(8))
    assert user.link.closing == "enough"
    data = await asyncio.get_running_loop().sock_recv(theirs, 65_536)
    assert [command.code for command in FrameDecoder().feed(data)] == [7]
    await ended(user.link)
    assert order == ["enough", "enough"]
    assert user.ends == ["enough"]
    assert user.counters.sends_after_close == 1
    user.link.abort("late")


async def test_the_peers_end_says_so(pair):
    user, theirs = await pair()
    theirs.close()
    await ended(user.link)
    assert user.ends == ["closed by the other side"]


async def test_a_peer_that_takes_nothing_cannot_keep_a_closing_link(pair, monkeypatch):
    monkeypatch.setattr("remoting.transport.link.CLOSE_DEADLINE_SECONDS", 0.02)
    user, _theirs = await pair()
    user.link.send(Command(1, body=bytes(1_000_000)))
    user.link.end("enough")
    await ended(user.link)
    assert user.ends == ["enough"]
