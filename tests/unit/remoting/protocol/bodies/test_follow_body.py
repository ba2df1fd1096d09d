"""Follow and notify bodies round-trip; malformed ones only violate."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.bodies import follow_body as fb
from remoting.protocol.errors import RemoteViolation

U32 = st.integers(0, 2**32 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


@given(add=st.lists(U32), remove=st.lists(U32))
def test_follow(add, remove):
    assert fb.decode_follow(fb.encode_follow(add, remove)) == (add, remove)


@given(ends=st.lists(I64))
def test_follow_reply(ends):
    assert fb.decode_follow_reply(fb.encode_follow_reply(ends)) == ends


@given(news=st.lists(st.tuples(U32, I64)), records=st.lists(st.binary(max_size=40), max_size=3))
def test_notify(news, records):
    assert fb.decode_notify(fb.encode_notify(news, records)) == (news, b"".join(records))


@pytest.mark.parametrize("decode", [fb.decode_follow, fb.decode_follow_reply, fb.decode_notify])
def test_arbitrary_bytes_only_violate(decode):
    @given(raw=st.one_of(st.binary(max_size=100), st.binary(max_size=50).map(lambda raw: b"\1\0\0\0" + raw)))
    def check(raw):
        with contextlib.suppress(RemoteViolation):
            decode(raw)

    check()
