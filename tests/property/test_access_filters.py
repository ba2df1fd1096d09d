"""Containment and intersection of filters against a model that tries every topic of a small world."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.access.rules import contains, covers, intersects, split
from remoting.protocol.records.topics import matches, validate_filter

WORDS = ["a", "b", "", "$s"]
LEVELS_MAX = 3
# One word that no filter contains stands for all such words; one level more than any filter has, for all longer topics.
WORLD = [
    "/".join(levels)
    for length in range(1, LEVELS_MAX + 2)
    for levels in itertools.product([*WORDS, "other", "$other"], repeat=length)
]


def filters() -> st.SearchStrategy[str]:
    """Valid filters over the small alphabet, `#` only at the end."""
    levels = st.lists(st.sampled_from([*WORDS, "+"]), min_size=0, max_size=LEVELS_MAX)
    joined = st.tuples(levels, st.sampled_from([[], ["#"]])).map(lambda parts: (parts[0] + parts[1])[:LEVELS_MAX])
    return joined.filter(bool).map("/".join).filter(lambda text: validate_filter(text) is None)


def topics_of(topic_filter: str) -> set[str]:
    return {topic for topic in WORLD if matches(topic_filter, topic)}


@settings(max_examples=1_500, deadline=None)
@given(filters(), filters())
def test_agrees_with_trying_every_topic(one: str, other: str) -> None:
    """In both directions, since neither relation is symmetric by construction."""
    first, second = topics_of(one), topics_of(other)
    assert contains(split(one), split(other)) == (second <= first), (one, other)
    assert contains(split(other), split(one)) == (first <= second), (one, other)
    assert intersects(split(one), split(other)) == bool(first & second), (one, other)
    assert intersects(split(other), split(one)) == bool(first & second), (one, other)


@settings(max_examples=500, deadline=None)
@given(filters(), st.sampled_from([topic for topic in WORLD if topic]))
def test_covers_is_matching(topic_filter: str, topic: str) -> None:
    """The walk over split levels decides as the protocol's matching does."""
    assert covers(split(topic_filter), tuple(topic.encode().split(b"/"))) == matches(topic_filter, topic)
