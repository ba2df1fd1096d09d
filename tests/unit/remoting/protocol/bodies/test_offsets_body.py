"""Offset bodies round-trip; malformed ones only violate."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.bodies.session_body import decode_offsets, encode_offsets
from remoting.protocol.errors import LocalMisuse, RemoteViolation

OFFSETS = st.lists(st.tuples(st.binary(max_size=30), st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1)))


@given(offsets=OFFSETS)
def test_round_trip(offsets):
    assert decode_offsets(encode_offsets(offsets)) == offsets


@given(raw=st.one_of(st.binary(max_size=100), st.binary(max_size=50).map(lambda raw: b"\1\0\0\0" + raw)))
def test_arbitrary_bytes_only_violate(raw):
    with contextlib.suppress(RemoteViolation):
        decode_offsets(raw)


def test_cut_and_trailing_bytes():
    body = encode_offsets([(b"client", 1, 2)])
    for cut in range(len(body)):
        with pytest.raises(RemoteViolation):
            decode_offsets(body[:cut])
    with pytest.raises(RemoteViolation, match="1 bytes follow"):
        decode_offsets(body + b"x")


def test_a_key_too_long_is_our_callers_fault():
    with pytest.raises(LocalMisuse):
        encode_offsets([(b"x" * 65_536, 0, 0)])
