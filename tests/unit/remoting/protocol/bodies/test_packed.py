"""Declared bodies: both forms round-trip, whatever does not fit is a violation naming the body."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.bodies import packed
from remoting.protocol.errors import RemoteViolation


class Sample(msgspec.Struct):
    """A body for these tests."""

    name: str
    numbers: list[int] = []


def test_round_trips():
    sample = Sample("a", [1, -2])
    assert packed.decode(Sample, packed.encode(sample)) == sample
    assert packed.decode_json(Sample, packed.encode_json(sample)) == sample


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[" * 100_000, b"\x91" * 100_000, b"\xff", b'{"name":1}', b'{"name":"\\ud800"}']
)
@pytest.mark.parametrize("decode", [packed.decode, packed.decode_json])
def test_malformed_bodies_name_themselves(raw, decode):
    with pytest.raises(RemoteViolation, match="malformed Sample"):
        decode(Sample, raw)


@given(raw=st.binary(max_size=100))
def test_arbitrary_bytes_only_violate(raw):
    for decode in (packed.decode, packed.decode_json):
        with contextlib.suppress(RemoteViolation):
            decode(Sample, raw)
