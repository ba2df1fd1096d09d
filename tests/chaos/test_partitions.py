"""A ring leaves every node a majority and no two the same one; a bridge is the only path between two halves."""

from __future__ import annotations

import pytest

from tests.chaos.partitions import bridge, ring


def heard(order: str, cut: list[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """The nodes that each node receives from, itself included."""
    deaf = {frozenset(pair) for pair in cut}
    return {one: frozenset(two for two in order if frozenset((one, two)) not in deaf) for one in order}


@pytest.mark.parametrize("order", ["abcde", "ebdac", "abcdefg", "abcdefghi", "abcdefghijk"])
def test_a_ring(order: str) -> None:
    """Five and more nodes, in any order."""
    found = heard(order, ring(order))
    assert all(len(each) > len(order) / 2 for each in found.values())
    assert len(set(found.values())) == len(order)


def test_a_small_ring_is_complete() -> None:
    """Of three nodes each has the two others as neighbours."""
    assert ring("abc") == []


@pytest.mark.parametrize("order", ["abc", "abcde", "gabcdef"])
def test_a_bridge(order: str) -> None:
    """The first one receives from all, every other one from its own half and the first."""
    found = heard(order, bridge(order))
    assert found[order[0]] == frozenset(order)
    halves = {each - {order[0]} for one, each in found.items() if one != order[0]}
    assert len(halves) == 2
    one, two = halves
    assert not one & two
    assert one | two == frozenset(order[1:])
