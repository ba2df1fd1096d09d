"""Filters that meet, compared with what real topics say."""

from __future__ import annotations

import itertools

import pytest

from mqtt_bridge.config import overlap
from remoting.protocol.records.topics import matches, validate_filter

LEVELS = ("a", "$b", "+", "#", "")
FILTERS = [
    text
    for count in (1, 2, 3)
    for levels in itertools.product(LEVELS, repeat=count)
    if validate_filter(text := "/".join(levels)) is None
]
TOPICS = [
    "/".join(levels) for count in (1, 2, 3, 4) for levels in itertools.product(("a", "$b", "", "x"), repeat=count)
]


def test_two_filters_meet_exactly_when_a_topic_matches_both() -> None:
    """Every pair over a small alphabet, against every topic over it."""
    found = {name: {topic for topic in TOPICS if matches(name, topic)} for name in FILTERS}
    for one, two in itertools.product(FILTERS, repeat=2):
        assert overlap(one, two) == bool(found[one] & found[two]), (one, two)


@pytest.mark.parametrize(
    ("one", "two", "meet"),
    [("a/#", "a", True), ("a/+", "a", False), ("a/b/#", "a/+/c", True), ("#", "$SYS/x", False), ("a/b", "a/c", False)],
)
def test_examples(one: str, two: str, meet: bool) -> None:
    assert overlap(one, two) is meet
    assert overlap(two, one) is meet
