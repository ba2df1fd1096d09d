"""The cases of containment and intersection that are easy to get wrong."""

from __future__ import annotations

import pytest

from remoting.access.filters import contains, covers, intersects, split


@pytest.mark.parametrize(
    ("outer", "inner", "inside"),
    [
        ("#", "a/b", True),
        ("#", "+/#", True),
        ("+/#", "#", True),
        ("a/#", "a", True),
        ("a/#", "a/#", True),
        ("a/#", "a/+/#", True),
        ("a/+/#", "a/#", False),
        ("a/+", "a/#", False),
        ("a/+", "a/b", True),
        ("a/b", "a/+", False),
        ("+", "#", False),
        ("+/+", "a/", True),
        ("a", "a/", False),
        ("a/b", "a", False),
        ("#", "$SYS/#", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/broker/+", True),
        ("$SYS/#", "#", False),
    ],
)
def test_contains(outer: str, inner: str, inside: bool) -> None:
    """Every topic of the inner filter, or not every one."""
    assert contains(split(outer), split(inner)) is inside


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("a/#", "+/b", True),
        ("a/+", "+/b", True),
        ("a/#", "a", True),
        ("a/b/#", "a", False),
        ("a/b", "a/c", False),
        ("a/+/c", "a/b", False),
        ("a/+/#", "a/b", True),
        ("a/+/#", "a", False),
        ("#", "$SYS/x", False),
        ("$SYS/+", "$SYS/x", True),
        ("#", "+", True),
    ],
)
def test_intersects(one: str, other: str, shared: bool) -> None:
    """Some topic in both, whichever is asked first."""
    assert intersects(split(one), split(other)) is shared
    assert intersects(split(other), split(one)) is shared


def test_covers() -> None:
    """Topic names, with the `$` rule and the parent that `#` includes."""
    assert covers(split("a/#"), (b"a",))
    assert covers(split("#"), (b"a", b"b"))
    assert not covers(split("#"), (b"$SYS", b"b"))
    assert not covers(split("a/+"), (b"a",))
    assert not covers(split("a"), (b"a", b"b"))
