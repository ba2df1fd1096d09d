"""Hosts and message ids: both address families round-trip, anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.records import stored_message as ids
from tests.support.message_ids import parse_offset_message_id

HOST = st.tuples(st.ip_addresses().map(str), st.integers(0, 65_535))


@given(host=HOST, position=st.integers(0, 2**63 - 1))
def test_offset_ids_round_trip(host, position):
    text = ids.offset_message_id(host, position)
    assert len(text) == (56 if ":" in host[0] else 32)
    assert text == text.upper()
    assert parse_offset_message_id(text) == (host, position)


def test_the_documented_form():
    assert ids.offset_message_id(("192.168.0.1", 10_911), 4096) == "C0A8000100002A9F0000000000001000"


def test_what_is_no_host():
    with pytest.raises(LocalMisuse, match="not an IP address"):
        ids.pack_host(("localhost", 1))
    with pytest.raises(LocalMisuse):
        ids.pack_host(("1.2.3.4", 2**31))
    with pytest.raises(RemoteViolation, match="host of 5 bytes"):
        ids.unpack_host(b"12345")
