"""Addresses as text: joined, split, and refused."""

from __future__ import annotations

import pytest

from remoting.protocol.addresses import join_address, split_address


@pytest.mark.parametrize(
    ("text", "expected"), [("h:1", ("h", 1)), (" 127.0.0.1:9876 ", ("127.0.0.1", 9876)), ("[::1]:80", ("::1", 80))]
)
def test_addresses(text, expected):
    assert split_address(text) == expected
    assert join_address(*expected) == text.strip()


@pytest.mark.parametrize("text", ["", "h", ":1", "h:", "h:x", "h:0", "h:65536", "h:-1"])
def test_what_is_no_address(text):
    with pytest.raises(ValueError, match="host:port"):
        split_address(text)
