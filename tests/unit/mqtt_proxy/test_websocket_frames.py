"""Frames against wsproto's: the same bytes, and the same errors found, however the input is cut."""

from __future__ import annotations

import random

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong
from wsproto.utilities import RemoteProtocolError

from mqtt_proxy import websocket
from mqtt_proxy.websocket import FrameReader

MASK = b"\x11\x22\x33\x44"


def masked(opcode: int, payload: bytes = b"", *, fin: bool = True, mask: bytes = MASK, rsv: int = 0) -> bytes:
    size = len(payload)
    head = bytes([(0x80 if fin else 0) | rsv | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 65_536:
        head += b"\xfe" + size.to_bytes(2, "big")
    else:
        head += b"\xff" + size.to_bytes(8, "big")
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))


def feed(data: bytes, step: int, reader: FrameReader | None = None) -> tuple[bytes, FrameReader]:
    made = reader or FrameReader()
    return b"".join(made.feed(data[at : at + step]) for at in range(0, len(data), step)), made


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100, 1 << 22])
@pytest.mark.parametrize("size", [0, 1, 4, 125, 126, 127, 65_535, 65_536, 100_003])
def test_payloads_are_unchanged(size: int, step: int) -> None:
    """Every form of the length; wsproto made the frames."""
    if step < 7 < 1_000 < size:
        step *= 1_001
    payload = random.Random(size).randbytes(size)
    client = Connection(ConnectionType.CLIENT)
    data = client.send(BytesMessage(data=payload)) * 3
    assert feed(data, step)[0] == payload * 3


@pytest.mark.parametrize("step", [1, 5, 1 << 20])
def test_fragments_with_control_frames_between(step: int) -> None:
    """A fragmented message is one stream; pings in between are reported, the last one counts; pongs are ignored."""
    data = masked(2, b"ab", fin=False) + masked(9, b"one") + masked(0, b"", fin=False) + masked(10, b"lost")
    data += masked(9, b"two") + masked(0, b"cd") + masked(2, b"ef")
    taken, reader = feed(data, step)
    assert (taken, reader.ping, reader.close_code) == (b"abcdef", b"two", None)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (masked(1, b"text"), 1003),
        (masked(2, b"x", rsv=0x40), 1002),
        (masked(2, b"x", rsv=0x10), 1002),
        (b"\x82\x01x", 1002),
        (masked(3), 1002),
        (masked(7), 1002),
        (masked(0xB), 1002),
        (masked(0xF), 1002),
        (masked(0, b"x"), 1002),
        (masked(2, b"x", fin=False) + masked(2, b"y"), 1002),
        (masked(9, b"x", fin=False), 1002),
        (masked(9, b"x" * 126), 1002),
        (masked(8, b"x"), 1002),
        (masked(8, b"\x03\xed"), 1002),
        (masked(8, b"\x03\xee"), 1002),
        (masked(8, b"\x03\xe7"), 1002),
        (masked(8, b"\x13\x88"), 1002),
        (masked(8, b"\x03\xe8\xff\xfe"), 1007),
        (b"\x82\xfe\x00\x7d" + MASK, 1002),
        (b"\x82\xff\x00\x00\x00\x00\x00\x00\xff\xff" + MASK, 1002),
        (b"\x82\xff\x80\x00\x00\x00\x00\x01\x00\x00" + MASK, 1002),
    ],
)
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_broken_rules_have_their_code(data: bytes, code: int, step: int) -> None:
    """What came before is kept, nothing after it is read."""
    taken, reader = feed(masked(2, b"good") + data + masked(2, b"late"), step)
    assert reader.close_code == code
    assert not reader.peer_closed
    assert taken.startswith(b"good")
    assert b"late" not in taken
    assert reader.feed(masked(2, b"later")) == b""


@pytest.mark.parametrize(
    ("payload", "code"), [(b"", 1000), (b"\x03\xe8", 1000), (b"\x03\xe9bye", 1001), (b"\x0f\xa0" + "ü".encode(), 4000)]
)
def test_a_proper_close(payload: bytes, code: int) -> None:
    """It is answered with its own code."""
    _, reader = feed(masked(8, payload), 1)
    assert (reader.close_code, reader.peer_closed) == (code, True)


def test_a_frame_above_the_present_limit() -> None:
    """Judged by its header before any of its payload has come; later it may pass."""
    reader = FrameReader(100)
    assert reader.feed(masked(2, bytes(100))) == bytes(100)
    reader.feed(masked(2, bytes(101))[:6])
    assert reader.close_code == websocket.TOO_BIG
    reader = FrameReader(100)
    reader.feed(masked(2, bytes(200))[:8])
    assert reader.close_code == websocket.TOO_BIG
    reader = FrameReader(100)
    reader.frame_size_bytes_max = None
    assert reader.feed(masked(2, bytes(200))) == bytes(200)


def test_a_claimed_length_costs_nothing() -> None:
    """A frame of an exabyte is a stream like any other."""
    reader = FrameReader()
    head = b"\x82\xff" + (1 << 60).to_bytes(8, "big") + bytes(4)
    assert reader.feed(head + b"abc") == b"abc"
    assert reader.feed(b"def") == b"def"
    assert reader.close_code is None


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_our_frames_are_understood(size: int) -> None:
    """wsproto as the client reads what the proxy sends."""
    client = Connection(ConnectionType.CLIENT)
    client.receive_data(websocket.data_frame(bytes(size)))
    client.receive_data(websocket.pong_frame(b"p"))
    client.receive_data(websocket.close_frame(1003))
    data, pong, close = list(client.events())
    assert isinstance(data, BytesMessage)
    assert bytes(data.data) == bytes(size)
    assert isinstance(pong, Pong)
    assert isinstance(close, CloseConnection)
    assert close.code == 1003


def _judge(data: bytes) -> tuple[bytes, bool]:
    """The verdict of wsproto: the bytes before the end, and whether the connection is over."""
    server, taken, over = Connection(ConnectionType.SERVER), b"", False
    try:
        server.receive_data(data)
        for event in server.events():
            if isinstance(event, BytesMessage):
                taken += bytes(event.data)
            over = over or isinstance(event, CloseConnection) or not isinstance(event, BytesMessage | Ping | Pong)
    except RemoteProtocolError:
        over = True
    return taken, over


def test_random_streams_are_judged_as_wsproto_does() -> None:
    """Valid and broken frames in any order, single bytes changed: the same data before the same end, cut or whole."""
    seeded = random.Random(5)
    ended = missed = 0
    for _ in range(2_000):
        pieces = [
            masked(
                seeded.choice((2, 2, 2, 9, 10, 0, 8, 1)), seeded.randbytes(seeded.choice((0, 1, 5, 130))),
                fin=seeded.random() < 0.8, mask=seeded.randbytes(4),
            )
            for _ in range(seeded.randrange(1, 5))
        ]  # fmt: skip
        data = bytearray(b"".join(pieces))
        if seeded.random() < 0.3:
            data[seeded.randrange(min(6, len(data)))] ^= 1 << seeded.randrange(8)
        whole, reader = feed(bytes(data), 1 << 20)
        cut, again = feed(bytes(data), seeded.choice((1, 3, 50)))
        assert (whole, reader.close_code, reader.ping) == (cut, again.close_code, again.ping)
        taken, over = _judge(bytes(data))
        assert not over or reader.close_code is not None, data.hex()
        missed += reader.close_code is not None and not over  # wsproto waits for the whole header before it judges
        assert whole.startswith(taken) or taken.startswith(whole)
        ended += over
    assert 200 < ended < 1_900
    assert missed < 60
