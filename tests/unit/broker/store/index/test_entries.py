"""Stretches of entries."""

from __future__ import annotations

import numpy as np

from broker.store.index.entries import Entries


def test_join() -> None:
    """Neighbours become one stretch; nothing stays nothing."""
    one = Entries(np.array([4, 5]), np.array([1, 2]), np.array([8, 8]), np.array([0, 0]), 6)
    two = Entries(np.array([6]), np.array([3]), np.array([9]), np.array([1]), 9)
    assert len(Entries.joined([])) == len(Entries.empty()) == 0
    assert Entries.joined([], 7).end == 7
    assert Entries.joined([one]) is one
    joined = Entries.joined([one, two])
    assert (joined.positions.tolist(), joined.sizes.tolist(), joined.tags.tolist()) == ([1, 2, 3], [8, 8, 9], [0, 0, 1])
    assert (joined.offsets.tolist(), joined.end) == ([4, 5, 6], 9)
    assert (one.dense, two.dense, joined.dense, Entries.empty().dense) == (True, False, False, True)
