"""Batch bodies round-trip; malformed ones name their message."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.records.rocketmq_form import BatchMessage, decode_batch, encode_batch

TEXT = st.binary(max_size=20).filter(lambda raw: b"\1" not in raw and b"\2" not in raw)
MESSAGES = st.lists(
    st.builds(
        BatchMessage,
        body=st.binary(max_size=60),
        properties=st.lists(st.tuples(TEXT, TEXT), max_size=3),
        flag=st.integers(-(2**31), 2**31 - 1),
    ),
    max_size=5,
)


@given(messages=MESSAGES)
def test_round_trip(messages):
    assert decode_batch(encode_batch(messages)) == messages


def test_the_documented_layout():
    assert (
        encode_batch([BatchMessage(b"ab", [(b"k", b"v")], 5)])
        == struct.pack(">iiiii", 28, 0, 0, 5, 2) + b"ab\0\4k\1v\2"
    )


def test_cuts_and_contradictions():
    good = encode_batch([BatchMessage(b"ab"), BatchMessage(b"cd", [(b"k", b"v")])])
    whole = len(encode_batch([BatchMessage(b"ab")]))
    for cut in set(range(1, len(good))) - {whole}:
        with pytest.raises(RemoteViolation, match=f"batch message {int(cut > whole)}"):
            decode_batch(good[:cut])
    for body_len in (-1, -(2**31), 2**31 - 1):
        with pytest.raises(RemoteViolation):
            decode_batch(struct.pack(">iiiii", 22, 0, 0, 0, body_len) + b"\0\0")


@given(raw=st.binary(max_size=120))
def test_arbitrary_bytes_only_violate(raw):
    with contextlib.suppress(RemoteViolation):
        decode_batch(raw)


def test_what_does_not_fit_is_our_callers_fault():
    with pytest.raises(LocalMisuse):
        encode_batch([BatchMessage(b"", flag=2**31)])
