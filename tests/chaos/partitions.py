"""Networks that are not divided in two, and in which not every node reaches every other: the pairs that are cut.

    ring     each hears its neighbours of either side, a majority with itself; no two hear the same one
    bridge   two halves apart, and one node that hears both

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
