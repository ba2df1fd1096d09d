"""Bodies of the shared subscriptions' requests there and back, and what is refused."""

from __future__ import annotations

import pytest

from remoting.protocol.bodies.session_body import HISTORY_BIT
from remoting.protocol.bodies.shared_body import (
    SHARED_BIT,
    SharedMember,
    SharedSettle,
    SharedSettled,
    SharedTake,
    SharedTaken,
    decode,
    decode_given,
    encode,
    encode_given,
    is_shared_place,
)
from remoting.protocol.errors import RemoteViolation

GIVEN = [(7, 12, b"first record"), (9, 2**40, b""), (7, 13, b"x" * 300)]


@pytest.mark.parametrize(
    "message",
    [
        SharedTake([SharedMember(1, "c", 2**33, "$share/g/a", 64, [1, 2**40])]),
        SharedTaken([True, False]),
        SharedSettle([SharedSettled(1, -5, [1, 2], [3]), SharedSettled(2, 9, sent=[4])]),
    ],
)
def test_msgpack_there_and_back(message) -> None:
    """What is said arrives."""
    assert decode(type(message), encode(message)) == message


def test_given_there_and_back() -> None:
    """Records arrive as views, each with whom it is for."""
    assert [(handle, offset, bytes(record)) for handle, offset, record in decode_given(encode_given(GIVEN))] == GIVEN
    assert decode_given(encode_given([])) == []


def test_a_cut_or_stretched_body_is_a_violation() -> None:
    """Nothing else comes out of a damaged body."""
    body = encode_given(GIVEN)
    for end in range(len(body)):
        with pytest.raises(RemoteViolation):
            decode_given(body[:end])
    with pytest.raises(RemoteViolation):
        decode_given(body + b"x")


def test_a_place_of_a_group_is_told_from_those_in_the_log() -> None:
    """A retained message's place, and one before a queue, have other bits set too."""
    places = (7, 7 | SHARED_BIT, 7 | HISTORY_BIT, 0xFFFF_FFFF)
    assert [is_shared_place(place) for place in places] == [False, True, False, False]
