"""The stream's frames: they survive a round trip, however the bytes are cut; anything else is one violation."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication import frames
from broker.replication.frames import (
    ACK,
    DATA_BYTES_MAX,
    FROM_MASTER,
    FROM_REPLICA,
    GREETING,
    READY,
    TEXT_BYTES_MAX,
    Ack,
    Decoder,
    Greeting,
    Hello,
    Leave,
    Ready,
    Refusal,
    Transfer,
    Welcome,
)
from remoting.native.checksum import crc32c
from remoting.protocol.errors import LocalMisuse, RemoteViolation

NONCE = bytes(range(16))
PROOF = b"p" * 32
ALL = FROM_MASTER | FROM_REPLICA


def transfer(data: bytes = b"12345678", **changes: int) -> Transfer:
    fields = {"epoch": 3, "epoch_start": 100, "position": 120, "confirm": 90, "segment_base": 64, "segment_size": 4096}
    return Transfer(**(fields | changes), data=data)


def encoded(frame: frames.Frame) -> bytes:
    match frame:
        case Greeting():
            return frames.encode_greeting(frame)
        case Hello():
            return frames.encode_hello(frame, lambda _: PROOF)
        case Welcome():
            return frames.encode_welcome(frame, lambda _: PROOF)
        case Refusal():
            return frames.encode_refusal(frame)
        case Ready():
            return frames.encode_ready(frame)
        case Ack():
            return frames.encode_ack(frame)
        case Leave():
            return frames.encode_leave()
        case Transfer():
            return frames.encode_transfer_head(frame) + bytes(frame.data)


EVERY = [
    Greeting(NONCE),
    Hello(7, 5, 8, 4096, NONCE, "cluster", "groüp", "key", True),
    Hello(1, 0, 0, 0, NONCE, "", "", ""),
    Welcome(5, 64, 4096, [(1, 0), (5, 2000)]),
    Welcome(1, 0, 0, []),
    Refusal(frames.EXPIRED, 5, "the log begins at 64"),
    Ready(5, 4096),
    Ack(5, 4000),
    Leave(),
    transfer(),
    transfer(b""),
]


def plain(frame: frames.Frame) -> frames.Frame:
    """The frame without what only a received one has."""
    match frame:
        case Hello():
            assert frame.proof == PROOF
            return Hello(*[getattr(frame, name) for name in list(Hello.__slots__)[:9]])
        case Welcome():
            assert frame.proof == PROOF
            return Welcome(frame.epoch, frame.begin, frame.end, list(frame.epochs))
        case Transfer():
            return replace(frame, data=bytes(frame.data))
    return frame


@given(st.lists(st.sampled_from(EVERY), min_size=1, max_size=6), st.data())
def test_frames_are_unchanged_however_the_bytes_are_cut(sent, data):
    """A decoder does not depend on the boundaries of its input."""
    stream = b"".join(map(encoded, sent))
    decoder, got, at = Decoder(ALL), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        got += map(plain, decoder.feed(stream[at : at + size]))
        at += size
    assert got == sent
    assert decoder.buffered_bytes == 0


@given(st.sampled_from(EVERY), st.data())
def test_a_flipped_bit_is_never_a_frame(frame, data):
    """The checksum covers the header too; at worst the decoder waits for bytes that never come."""
    stream = bytearray(encoded(frame))
    bit = data.draw(st.integers(0, len(stream) * 8 - 1))
    stream[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(RemoteViolation):
        assert list(Decoder(ALL).feed(bytes(stream))) == []


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_a_violation(noise):
    """A decoder returns nothing else."""
    with contextlib.suppress(RemoteViolation):
        list(Decoder(ALL).feed(noise))


@given(st.sampled_from(sorted(ALL)), st.binary(max_size=120))
def test_a_sound_frame_with_any_payload_is_a_frame_or_a_violation(kind, payload):
    """A peer that computes checksums can still send nonsense."""
    with contextlib.suppress(RemoteViolation):
        list(Decoder(ALL).feed(sealed(kind, payload)))


def sealed(kind: int, payload: bytes, flags: int = 0) -> bytes:
    head = frames.HEAD.pack(frames.MAGIC, kind, flags, 0, len(payload), 0)[:12]
    return head + crc32c(payload, crc32c(head)).to_bytes(4, "big") + payload


def test_frames_before_the_broken_one_are_delivered_and_none_after_it():
    """A violation is the end of the stream, however often it is fed."""
    decoder, got = Decoder(ALL), []
    stream = encoded(Ack(1, 2)) + b"x" * 16 + encoded(Ack(1, 3))
    with pytest.raises(RemoteViolation):
        got.extend(decoder.feed(stream))
    assert got == [Ack(1, 2)]
    with pytest.raises(RemoteViolation):
        list(decoder.feed(encoded(Ack(1, 3))))


@pytest.mark.parametrize(
    "stream",
    [
        encoded(Greeting(NONCE)),
        sealed(ACK, bytes(11)),
        sealed(ACK, bytes(13)),
        sealed(ACK, b"\x00\x00\x00\x01" + b"\xff" * 8),
        sealed(READY, b""),
        sealed(ACK, bytes(12), flags=1),
        sealed(99, b""),
        frames.HEAD.pack(frames.MAGIC, ACK, 0, 0, 13, 0),
    ],
)
def test_what_a_replica_may_not_send(stream):
    """Kinds of the other side, other sizes, impossible positions; a length is judged before the bytes arrive."""
    with pytest.raises(RemoteViolation):
        list(Decoder(FROM_REPLICA).feed(stream))


@pytest.mark.parametrize(
    "broken",
    [
        transfer(position=99),
        transfer(segment_base=128),
        transfer(segment_size=60),
        transfer(position=2**63 - 4, segment_base=2**63 - 4, segment_size=8),
        Hello(1, 1, 10, 9, NONCE, "c", "g"),
        Welcome(1, 10, 9, []),
    ],
)
def test_frames_that_contradict_themselves(broken):
    """Bytes belong to their epoch and to their file; a log does not end before it begins."""
    with pytest.raises(RemoteViolation):
        list(Decoder(ALL).feed(encoded(broken)))


def test_what_does_not_fit_is_refused_before_it_is_sent():
    """Limits hold on the sending side too; a remark is cut instead."""
    with pytest.raises(LocalMisuse):
        frames.encode_transfer_head(transfer(bytes(DATA_BYTES_MAX + 1)))
    with pytest.raises(LocalMisuse):
        encoded(Hello(1, 1, 0, 0, NONCE, "c" * (TEXT_BYTES_MAX + 1), "g"))
    (refusal,) = Decoder(FROM_MASTER).feed(encoded(Refusal(1, 1, "ü" * TEXT_BYTES_MAX)))
    assert refusal == Refusal(1, 1, "ü" * (TEXT_BYTES_MAX // 2))


def test_a_decoder_may_have_a_lower_limit():
    """A replica knows how large a record can be, and no part is larger than that and the size of a part."""
    list(Decoder(FROM_MASTER, 8).feed(encoded(transfer(bytes(8)))))
    with pytest.raises(RemoteViolation):
        list(Decoder(FROM_MASTER, 7).feed(encoded(transfer(bytes(8)))))


def test_a_proof_covers_everything_before_it():
    """What is signed is what was sent."""
    signed = []

    def prove(content: bytes) -> bytes:
        signed.append(content)
        return PROOF

    stream = frames.encode_hello(EVERY[1], prove) + frames.encode_welcome(EVERY[3], prove)
    hello, welcome = Decoder(ALL).feed(stream)
    assert [hello.signed, welcome.signed] == signed
    assert [hello.proof, welcome.proof] == [PROOF, PROOF]


def test_a_text_may_not_exceed_its_frame():
    """A length inside a frame is as untrusted as the frame."""
    payload = frames._REFUSAL.pack(1, 1) + (400).to_bytes(2, "big") + b"short"
    with pytest.raises(RemoteViolation):
        list(Decoder(FROM_MASTER).feed(sealed(frames.REFUSAL, payload)))
    assert GREETING in FROM_MASTER
