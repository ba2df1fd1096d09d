"""Which topics are a bridge's to write, and what it may say there."""

from __future__ import annotations

import pytest

from remoting.protocol.records.connection_state import owner_of, says_something_else


@pytest.mark.parametrize(
    ("topic", "owner"),
    [
        (b"$SYS/broker/connection/host.name/state", b"host.name"),
        (b"$SYS/broker/connection/\xc3\xa4/state", b"\xc3\xa4"),
        (b"$SYS/broker/connection//state", None),
        (b"$SYS/broker/connection/state", None),
        (b"$SYS/broker/connection/a/b/state", None),
        (b"$SYS/broker/connection/a/state/", None),
        (b"$SYS/broker/connection/a/State", None),
        (b"/$SYS/broker/connection/a/state", None),
        (b"$SYS/broker/version", None),
        (b"$sys/broker/connection/a/state", None),
    ],
)
def test_owner_of(topic: bytes, owner: bytes | None) -> None:
    """One level names the client; nothing near it does."""
    assert owner_of(topic) == owner


def test_states() -> None:
    """Connected, not connected, forgotten; other topics may say what they like."""
    topic = b"$SYS/broker/connection/a/state"
    assert not any(says_something_else(topic, payload) for payload in (b"", b"0", b"1", memoryview(b"1")))
    assert all(says_something_else(topic, payload) for payload in (b"2", b"10", b"1" * 1_000_000))
    assert not says_something_else(b"a", b"anything")
