"""Two sides that share a secret understand each other in any pieces; everybody else learns and costs nothing."""

from __future__ import annotations

import contextlib
import pickle
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.consensus.wire import (
    COMMANDS_KNOWN,
    FRAME_BYTES_MAX,
    MAGIC,
    RANDOM_BYTES,
    Append,
    Founded,
    Granted,
    Install,
    Join,
    JoinReply,
    NextIndex,
    PreGranted,
    PreVote,
    RequestVote,
    SecureChannel,
    decode_message,
    encode_message,
    stretch,
)
from remoting.protocol.errors import RemoteViolation


class EarlierNextIndex(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """As releases have it that do not know the users of a cluster."""

    term: int
    next_index: int
    reset: bool
    success: bool


KEY = stretch(b"a secret of the controllers")
MEMBERS = ("n1", "n2", "n3")
MESSAGES = [
    RequestVote(3, 2, 1),
    Granted(3),
    Append(3, 2, 1, 1, [(b"x", 2, 3), (b"", 3, 3)]),
    Install(3, 2, b"piece", True, False),
    NextIndex(3, 9, True, False),
    PreVote(4, 2, 1),
    PreGranted(4),
    Founded(4),
    Join(4, 7),
    JoinReply(4, 7, False, 2, 1),
]


def test_an_earlier_release_overlooks_which_commands_are_known():
    """And a message of one is of a sender that knows none of the later ones."""
    newer, earlier = NextIndex(3, 9, True, False, COMMANDS_KNOWN), EarlierNextIndex(3, 9, True, False)
    assert msgspec.msgpack.decode(encode_message(newer), type=EarlierNextIndex) == earlier
    assert decode_message(msgspec.msgpack.encode(earlier)) == NextIndex(3, 9, True, False, 0)


def pair(key=KEY):
    """A dialer and the one it called, after their hellos."""
    dialer = SecureChannel(KEY, "n2", MEMBERS, b"d" * RANDOM_BYTES, dialed="n1")
    called = SecureChannel(key, "n1", MEMBERS, b"c" * RANDOM_BYTES, dialed=None)
    return dialer, called


def shake_hands(dialer, called):
    proof_of_called, _ = called.feed(dialer.hello())
    proof_of_dialer, _ = dialer.feed(called.hello() + proof_of_called)
    called.feed(proof_of_dialer)


def test_both_are_proven_and_talk():
    """Names are known, frames arrive in order, empty ones are not messages."""
    dialer, called = pair()
    shake_hands(dialer, called)
    assert (dialer.proven, called.proven, called.peer) == (True, True, "n2")
    frames = dialer.seal(b"one") + dialer.seal(b"") + dialer.seal(b"two")
    received = []
    for at in range(len(frames)):
        received += called.feed(frames[at : at + 1])[1]
    assert received == [b"one", b"two"]
    assert dialer.feed(called.seal(b"back"))[1] == [b"back"]


def test_another_secret_proves_nothing():
    """Neither side takes the other's first frame."""
    dialer, called = pair(stretch(b"another secret, just as long"))
    proof, _ = called.feed(dialer.hello())
    with pytest.raises(RemoteViolation, match="secret"):
        dialer.feed(called.hello() + proof)
    assert not dialer.proven
    assert dialer.feed(b"anything") == (b"", [])


@pytest.mark.parametrize("how", ["again", "changed", "turned around", "in another order"])
def test_frames_cannot_be_used_otherwise(how):
    """Said again, changed in one bit, sent back to its sender, or swapped with the next: the session ends."""
    dialer, called = pair()
    shake_hands(dialer, called)
    first, second = dialer.seal(b"one"), dialer.seal(b"two")
    if how == "turned around":
        with pytest.raises(RemoteViolation):
            dialer.feed(first)
        return
    if how == "again":
        called.feed(first)
    frame = {"again": first, "changed": first[:-1] + bytes([first[-1] ^ 1]), "in another order": second}[how]
    with pytest.raises(RemoteViolation):
        called.feed(frame)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        MAGIC + b"\x00",
        MAGIC + b"\xff" + b"n" * 300,
        MAGIC + b"\x02n1" + b"r" * RANDOM_BYTES,
        MAGIC + b"\x02n9" + b"r" * RANDOM_BYTES,
        struct.pack("i", 100) + pickle.dumps(print),
    ],
)
def test_strangers_are_refused_by_their_first_bytes(data):
    """Another protocol, no name, our own name, an unknown name, a pickle."""
    _, called = pair()
    with pytest.raises(RemoteViolation):
        called.feed(data)


def test_a_frame_of_an_unproven_peer_is_tiny():
    """It may announce as much as it wants: nothing beyond the proof is waited for. A proven one has a limit too."""
    _, called = pair()
    called.feed(MAGIC + b"\x02n2" + b"r" * RANDOM_BYTES)
    with pytest.raises(RemoteViolation, match="at most 16"):
        called.feed(struct.pack("<I", 1_000))
    dialer, called = pair()
    shake_hands(dialer, called)
    with pytest.raises(RemoteViolation, match=f"at most {FRAME_BYTES_MAX}"):
        called.feed(struct.pack("<I", FRAME_BYTES_MAX + 1))


def test_the_one_that_was_dialed_must_answer():
    """Another controller at its address is not it."""
    dialer, _ = pair()
    other = SecureChannel(KEY, "n3", MEMBERS, b"o" * RANDOM_BYTES, dialed=None)
    with pytest.raises(RemoteViolation, match="expected"):
        dialer.feed(other.hello())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive(message):
    """Each type comes back as it was."""
    assert decode_message(encode_message(message)) == message


@given(st.binary(max_size=200))
def test_rubbish_is_a_violation(data):
    """Proven or not, nothing but a message is one."""
    with contextlib.suppress(RemoteViolation):
        assert decode_message(data) is not None
    _, called = pair()
    try:
        called.feed(data)
    except RemoteViolation:
        assert not called.proven
