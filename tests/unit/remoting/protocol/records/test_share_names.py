"""What a shared subscription's name may be, and what its inner filter is."""

from __future__ import annotations

import pytest

from remoting.protocol.records.share_names import Share, inner_filter, share_of, validate_subscription


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("$share/g/a", Share("g", "a")),
        ("$share/g/a/+/#", Share("g", "a/+/#")),
        ("$share/g//a", Share("g", "/a")),
        ("$share/g", Share("g", "")),
        ("$share//a", Share("", "a")),
        ("$share", None),
        ("$shared/g/a", None),
        ("a/$share/g", None),
    ],
)
def test_parts(name: str, share: Share | None) -> None:
    """Only a name that begins with `$share/` has parts."""
    assert share_of(name) == share
    assert inner_filter(name) == (name if share is None else share.filter)


@pytest.mark.parametrize(
    "name",
    [
        "$share/g/a", "$share/g/#", "$share/g/+/x", "$share/g//", "$share", "a/+", "$SYS/#", "$queue", "$queues/a",
        "$share/g/$SYS/broker/connection/+/state", "a/$queue/b",
    ],
)  # fmt: skip
def test_valid(name: str) -> None:
    """[MQTT-4.8.2-1] [MQTT-4.8.2-2] a share name, a slash, a topic filter; or an ordinary filter."""
    assert validate_subscription(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "$share/",
        "$queue/a",
        "$exclusive/a",
        "$delayed/#",
        "$share/g/$queue/a",
        "$share/g/$SYS/#",
        "$share/g/$SYS/broker/uptime",
        "$share/g",
        "$share/g/",
        "$share//a",
        "$share/+/a",
        "$share/a#/b",
        "$share/g/a#",
        "$share/g/$share/h/a",
        "$share/g/$history/last=1/a",
    ],
)
def test_refused(name: str) -> None:
    """An empty share name, one with a wildcard, a missing or invalid inner filter, a share within a share."""
    assert validate_subscription(name) is not None
