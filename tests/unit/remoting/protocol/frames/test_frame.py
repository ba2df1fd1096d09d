"""Frames: any split of the stream yields the same commands; a violation is raised once and kills the decoder."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.frames.commands import SERIALIZE_JSON, SERIALIZE_ROCKETMQ, Command
from remoting.protocol.frames.frame import FrameDecoder, encode_frame

COMMANDS = st.lists(
    st.builds(
        Command,
        code=st.integers(0, 3000),
        opaque=st.integers(0, 2**31 - 1),
        fields=st.dictionaries(st.text("abc", max_size=3), st.text("xyz/ü", max_size=9), max_size=3),
        body=st.binary(max_size=300),
        serialize_type=st.sampled_from((SERIALIZE_JSON, SERIALIZE_ROCKETMQ)),
    ),
    max_size=6,
)


@given(
    commands=COMMANDS,
    cuts=st.lists(st.integers(0, 2000), max_size=12),
    kind=st.sampled_from((bytes, bytearray, memoryview)),
)
def test_any_split_yields_the_same_commands(commands, cuts, kind):
    stream = b"".join(map(encode_frame, commands))
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    decoder = FrameDecoder()
    seen = [c for start, end in itertools.pairwise(edges) for c in decoder.feed(kind(stream[start:end]))]
    assert seen == commands
    assert decoder.buffered_bytes == 0
    assert all(type(command.body) is bytes for command in seen)


def test_byte_dribble():
    commands = [
        Command(10, body=b"abc"),
        Command(11, fields={"a": "b"}, serialize_type=SERIALIZE_ROCKETMQ),
        Command(34),
    ]
    decoder = FrameDecoder()
    seen = [command for byte in b"".join(map(encode_frame, commands)) for command in decoder.feed(bytes((byte,)))]
    assert seen == commands


def test_a_long_frame_in_pieces_is_decoded_once_it_is_complete():
    frame = encode_frame(Command(10, body=bytes(1_000_000)))
    decoder = FrameDecoder()
    for at in range(0, len(frame) - 1, 65_536):
        assert decoder.feed(frame[at : min(at + 65_536, len(frame) - 1)]) == []
    assert decoder.buffered_bytes == len(frame) - 1
    assert len(decoder.feed(frame[-1:])[0].body) == 1_000_000


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (struct.pack(">II", 1_000_000, 0), "limit is 1000"),
        (b"GET / HTTP/1.1\r\n", "limit is 1000"),
        (struct.pack(">II", 3, 0), "header of 0 bytes in a frame of 3"),
        (struct.pack(">II", 10, 7), "header of 7 bytes in a frame of 10"),
        (struct.pack(">II", 4, 9 << 24), "unknown header serialisation 9"),
        (struct.pack(">II", 6, 2) + b"{}", "malformed JSON header"),
    ],
)
def test_a_violation_is_raised_once(raw, reason):
    decoder = FrameDecoder(frame_size_bytes_max=1000)
    with pytest.raises(RemoteViolation, match=reason):
        decoder.feed(raw)
    assert decoder.feed(encode_frame(Command(1))) == []
    assert decoder.buffered_bytes == 0


def test_the_limit_counts_the_whole_frame():
    frame = encode_frame(Command(1, body=b"x" * 100))
    assert FrameDecoder(len(frame)).feed(frame)
    with pytest.raises(RemoteViolation):
        FrameDecoder(len(frame) - 1).feed(frame)


@given(pieces=st.lists(st.binary(max_size=80), max_size=5))
def test_arbitrary_bytes_only_violate(pieces):
    decoder = FrameDecoder(10_000)
    violations = 0
    for piece in pieces:
        try:
            decoder.feed(piece)
        except RemoteViolation:
            violations += 1
    assert violations <= 1


def test_a_header_that_is_too_long_is_our_callers_fault():
    with pytest.raises(LocalMisuse, match="a frame carries at most"):
        encode_frame(Command(1, remark="x" * 17_000_000))


def test_the_header_of_an_unfinished_frame_can_be_read() -> None:
    """As soon as it has arrived; its body need not have."""
    decoder = FrameDecoder()
    frame = encode_frame(Command(10, fields={"topic": "t"}, body=bytes(1_000)))
    at = len(frame) - 1_000
    assert decoder.feed(frame[:6]) == []
    assert decoder.unfinished_head() is None
    decoder.feed(frame[6 : at - 1])
    assert decoder.unfinished_head() is None
    assert decoder.frame_bytes == len(frame)
    decoder.feed(frame[at - 1 : at + 5])
    head = decoder.unfinished_head()
    assert head is not None
    assert (head.code, head.fields, head.body) == (10, {"topic": "t"}, b"")
