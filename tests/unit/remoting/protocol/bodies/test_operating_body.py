"""Questions to proxies survive encoding; anything else is a violation, never another exception."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.bodies.operating_body import (
    ClientLine,
    ClientPage,
    ClientQuery,
    ProxyAnswered,
    ProxyAsked,
    ProxyPresent,
    decode,
    encode,
)
from remoting.protocol.errors import RemoteViolation

NUMBER = st.integers(-(2**63), 2**63 - 1)
RATE = st.floats(allow_nan=False)
MEMBERS_OF_LINES = {int: NUMBER, float: RATE}
LINE = st.builds(
    ClientLine,
    **{
        one.name: MEMBERS_OF_LINES[one.type]
        for one in msgspec.structs.fields(ClientLine)
        if one.type in MEMBERS_OF_LINES
    },
)
MEMBERS: dict[type, dict[str, st.SearchStrategy]] = {
    ProxyPresent: {"listeners": st.dictionaries(st.text(max_size=5), NUMBER, max_size=4)},
    ClientPage: {"clients": st.lists(LINE, max_size=3)},
}
KINDS = (ProxyPresent, ProxyAsked, ProxyAnswered, ClientQuery, ClientLine, ClientPage)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_what_is_encoded_is_decoded_to_the_same(kind: type, data: st.DataObject) -> None:
    members = {name: NUMBER for name, type_ in kind.__annotations__.items() if type_ == "int"}
    members |= {name: RATE for name, type_ in kind.__annotations__.items() if type_ == "float"}
    message = data.draw(st.builds(kind, **MEMBERS.get(kind, {}), **members))
    assert decode(kind, encode(message)) == message


@pytest.mark.parametrize("kind", KINDS)
@given(raw=st.binary(max_size=64))
def test_foreign_bytes_only_raise_violations(kind: type, raw: bytes) -> None:
    with contextlib.suppress(RemoteViolation):
        assert isinstance(decode(kind, raw), kind)


def test_members_added_later_may_be_missing() -> None:
    assert decode(ClientQuery, b"\x91\x05") == ClientQuery(5)
    assert decode(ProxyAsked, b"\x92\x01\xa4kick") == ProxyAsked(1, "kick")
