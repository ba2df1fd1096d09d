"""Bodies of the shared subscriptions' requests there and back, and what is refused."""

from __future__ import annotations

import pytest

from remoting.protocol.errors import RemoteViolation
from remoting.protocol.shared_body import (
    SharedMember,
    SharedSettle,
    SharedSettled,
    SharedTake,
    SharedTaken,
    decode,
    decode_given,
    encode,
    encode_given,
)

GIVEN = [(7, 12, b"first record"), (9, 2**40, b""), (7, 13, b"x" * 300)]


@pytest.mark.parametrize(
    "message",
    [
        SharedTake([SharedMember(1, "c", 2**33, "$share/g/a", 64, [1, 2**40])]),
        SharedTaken([True, False]),
        SharedSettle([SharedSettled(1, -5, [1, 2], [3]), SharedSettled(2, 9)]),
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
