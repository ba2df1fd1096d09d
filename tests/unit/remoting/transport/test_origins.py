"""What counts as one peer."""

from __future__ import annotations

import pytest

from remoting.transport.origins import origin_of


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_what_counts_as_one_peer(address: str, origin: str) -> None:
    """An IPv6 network counts as one peer: its owner has more addresses than the queue has entries."""
    assert origin_of(address) == origin
