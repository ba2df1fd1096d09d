"""One write a turn, the limit of what waits, and the peer that takes nothing."""

from __future__ import annotations

import asyncio

from remoting.transport.output import LinkSettings, Output


class Socket:
    """A transport that keeps what it is given until it is told to let it go."""

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
