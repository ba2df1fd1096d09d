"""Partial partitions, in which some nodes cannot reach each other but no side is isolated: the pairs that are cut.

    ring     each node reaches its neighbours on either side, with itself a majority; no two reach the same set
    bridge   two separate halves, and one node that reaches both

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

Pair = tuple[str, str]


def ring(order: Sequence[str]) -> list[Pair]:
    """Pairs that are cut when the nodes stand in a ring of this order."""
    count = len(order)
    reach = (count // 2 + 1) // 2
    places = combinations(range(count), 2)
    return [(order[one], order[two]) for one, two in places if min(two - one, count - two + one) > reach]


def bridge(order: Sequence[str]) -> list[Pair]:
    """Pairs that are cut when the first node is the only path between two halves of the others."""
    others = order[1:]
    half = len(others) // 2
    return list(product(others[:half], others[half:]))


PARTITIONS = {"ring": ring, "bridge": bridge}
