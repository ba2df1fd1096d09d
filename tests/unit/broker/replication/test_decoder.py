"""Frames out of a buffer that is filled from outside: it moves, grows for a large frame and shrinks again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication.frames import (
    FROM_MASTER,
    FROM_REPLICA,
    Ack,
    Decoder,
    Transfer,
    encode_ack,
    encode_transfer_head,
)
from remoting.protocol.errors import RemoteViolation

BUFFER_BYTES = 256


def encoded(data: bytes) -> bytes:
    return encode_transfer_head(Transfer(1, 0, 0, 0, 0, 4096, data)) + data


def fill(decoder: Decoder, stream: bytes) -> list[bytes]:
    """Put bytes where the decoder wants them, as a socket does; returns the content of its transfers."""
    found, at = [], 0
    while at < len(stream):
        room = decoder.room()
        count = min(len(room), len(stream) - at)
        room[:count] = stream[at : at + count]
        at += count
        for frame in decoder.filled(count):
            assert isinstance(frame, Transfer)
            found.append(bytes(frame.data))
    return found


@given(st.lists(st.integers(0, 3 * BUFFER_BYTES), min_size=1, max_size=12), st.integers(1, 2 * BUFFER_BYTES))
def test_parts_of_all_sizes_are_unchanged(sizes: list[int], step: int) -> None:
    """However the reads fall, and whatever had to be moved or grown for it."""
    sent = [bytes([number]) * size for number, size in enumerate(sizes)]
    stream = b"".join(map(encoded, sent))
    decoder = Decoder(FROM_MASTER, buffer_bytes=BUFFER_BYTES)
    got = [data for at in range(0, len(stream), step) for data in fill(decoder, stream[at : at + step])]
    assert got == sent
    assert decoder.buffered_bytes == 0
    assert len(decoder.room()) == BUFFER_BYTES


def test_a_frame_that_is_larger_gets_a_buffer_of_its_size() -> None:
    """Once its head is there it is read in one piece."""
    decoder = Decoder(FROM_MASTER, buffer_bytes=BUFFER_BYTES)
    stream = encoded(bytes(1_000))
    assert fill(decoder, stream[:100]) == []
    assert len(decoder.room()) == len(stream) - 100
    assert fill(decoder, stream[100:]) == [bytes(1_000)]


def test_what_follows_a_frame_is_moved_to_the_front_when_it_would_not_fit() -> None:
    """And only then."""
    decoder = Decoder(FROM_MASTER, buffer_bytes=BUFFER_BYTES)
    first = encoded(bytes(20))
    assert fill(decoder, first + first[:30]) == [bytes(20)]
    assert len(decoder.room()) == BUFFER_BYTES - len(first) - 30
    large = encoded(b"x" * 150)
    assert fill(decoder, first[30:] + large[:30]) == [bytes(20)]
    assert len(decoder.room()) == BUFFER_BYTES - 30
    assert fill(decoder, large[30:]) == [b"x" * 150]


def test_after_a_violation_nothing_is_decoded() -> None:
    """However the bytes come."""
    decoder = Decoder(FROM_REPLICA)
    stream = encode_ack(Ack(1, 2))
    with pytest.raises(RemoteViolation):
        list(decoder.feed(stream[:-1] + b"x"))
    room = decoder.room()
    room[: len(stream)] = stream
    with pytest.raises(RemoteViolation):
        list(decoder.filled(len(stream)))
