"""The three rules of when a message is taken."""

from __future__ import annotations

import pytest

from broker.replication.acknowledge import Acknowledge
from remoting.protocol.errors import LocalMisuse


def test_alone_the_local_rule_decides():
    """async: no limit, and never refused for want of replicas."""
    rule = Acknowledge(mode="async")
    assert rule.limit(100, [], 0) is None
    assert rule.accepts(1)
    assert rule.members_min == 1


@pytest.mark.parametrize(("count", "expected"), [(1, 100), (2, 80), (3, 30), (4, 0)])
def test_a_number_of_copies(count, expected):
    """count: the end that so many copies have reached, the master's among them."""
    rule = Acknowledge(mode="count", count=count, in_sync_min=2)
    assert rule.limit(100, [30, 80], 30) == expected
    assert rule.accepts(count)
    assert not rule.accepts(count - 1)
    assert rule.members_min == 1


def test_all_that_are_in_sync():
    """all: the confirm position, and at least so many members."""
    rule = Acknowledge(mode="all", in_sync_min=2)
    assert rule.limit(100, [30, 80], 30) == 30
    assert rule.members_min == 2
    assert rule.accepts(2)
    assert not rule.accepts(1)


@pytest.mark.parametrize("wrong", [{"mode": "some"}, {"count": 0}, {"in_sync_min": 0}])
def test_rules_that_are_none(wrong):
    """A mistake in the configuration is told when it is read."""
    with pytest.raises(LocalMisuse):
        Acknowledge(**wrong)
