"""The answer to APPEND_MANY: offsets and bits round-trip; malformed ones are refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.bodies import append_body as ab
from remoting.protocol.errors import RemoteViolation


@given(
    end=st.integers(-(2**63), 2**63 - 1),
    placed=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(-1, 2**63 - 1))),
)
def test_replies_round_trip(end, placed):
    assert ab.decode_append_reply(ab.encode_append_reply(end, placed)) == (end, placed)


@given(unwanted=st.lists(st.booleans(), max_size=40))
def test_replies_have_which_entries_had_no_subscriber(unwanted):
    placed = [(1, number) for number in range(len(unwanted))]
    body = ab.encode_append_reply(9, placed, unwanted)
    assert ab.decode_unwanted(body) == {number for number, one in enumerate(unwanted) if one}
    assert ab.decode_append_reply(body) == (9, placed)
    assert ab.decode_unwanted(ab.encode_append_reply(9, placed)) == frozenset()


def test_the_bits_of_a_reply_are_those_of_the_format():
    """docs/formats/private-requests.md: eight in a byte, the lowest first."""
    body = ab.encode_append_reply(0, [(0, 0)] * 9, [True, False, True, *[False] * 5, True])
    assert body[-2:] == b"\x05\x01"
    with pytest.raises(RemoteViolation):
        ab.decode_unwanted(body[:-1])


@given(raw=st.binary(max_size=300))
def test_arbitrary_bytes_only_violate(raw):
    for decode in (ab.decode_append_reply, ab.decode_unwanted):
        with contextlib.suppress(RemoteViolation):
            decode(raw)
