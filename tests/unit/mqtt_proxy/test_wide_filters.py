"""Whether a filter is wider than another, by examples and by matching topics one by one."""

from __future__ import annotations

import itertools

import pytest

from mqtt_proxy.quotas import as_wide_as, plain_filter
from remoting.protocol.records.topics import matches, validate_filter

LEVELS = ("a", "b", "+", "#")
FILTERS = [
    text
    for depth in (1, 2, 3)
    for text in ("/".join(levels) for levels in itertools.product(LEVELS, repeat=depth))
    if validate_filter(text) is None
] + ["$s/#", "$s/+", "$s"]
TOPICS = ["/".join(levels) for depth in (1, 2, 3, 4) for levels in itertools.product(("a", "b", "c"), repeat=depth)]
TOPICS += ["$s", "$s/a", "$s/a/b", "$s/c"]
MATCHED = {topic_filter: {topic for topic in TOPICS if matches(topic_filter, topic)} for topic_filter in FILTERS}


def test_agrees_with_matching_every_topic() -> None:
    """For every pair of filters of up to three levels; no filter contains the word `c`."""
    for wide, narrow in itertools.product(FILTERS, FILTERS):
        assert as_wide_as(wide, narrow) == (MATCHED[narrow] <= MATCHED[wide]), (wide, narrow)


@pytest.mark.parametrize(
    ("subscription", "plain"),
    [("a/b", "a/b"), ("$share/g/a/b", "a/b"), ("$share/g/#", "#"), ("$SYS/#", "$SYS/#")],
)
def test_the_filter_of_a_shared_subscription(subscription: str, plain: str) -> None:
    """The prefix and the group are cut off."""
    assert plain_filter(subscription) == plain
