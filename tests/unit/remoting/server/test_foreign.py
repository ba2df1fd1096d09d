"""Other protocols are told by their first bytes, and no frame is taken for one of them."""

from __future__ import annotations

import asyncio

import pytest

from remoting.protocol.frames.commands import Command
from remoting.protocol.frames.frame import encode_frame
from remoting.server.foreign import foreign

CONNECT = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04test"


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "gRPC is not offered"),
        (b"GET /metrics HTTP/1.1\r\n", "administration port"),
        (b"POST / HTTP/1.1\r\n", "administration port"),
        (CONNECT, "MQTT port"),
        (b"\x10\x85\x01\x00\x04MQTT\x05", "MQTT port"),
        (b"\x10\x12\x00\x06MQIsdp\x03", "MQTT port"),
    ],
)
async def test_what_came_and_where_it_belongs_is_said(serve, caplog, first, said) -> None:
    assert said in foreign(first)
    server = await serve(lambda peer, command: command.reply())
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(first)
    assert await reader.read() == b""
    writer.close()
    assert said in caplog.text
    assert server.link_counters.foreign == 1


@pytest.mark.parametrize(
    "first", [encode_frame(Command(105)), b"\x00", b"", b"\x10\x00\x00\x00\x00\x00\x00\x01", b"xyz"]
)
def test_frames_and_noise_are_left_to_the_decoder(first) -> None:
    assert foreign(first) == ""
