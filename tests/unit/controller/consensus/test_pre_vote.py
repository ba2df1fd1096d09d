"""A round of asking: won by a majority, and late answers count for nothing."""

from __future__ import annotations

from controller.consensus.raft_node import PreVoteRound


def test_a_majority_wins():
    """Itself included, each controller once."""
    canvass = PreVoteRound("n1", 5)
    canvass.begin()
    canvass.granted("n2")
    canvass.granted("n2")
    assert (canvass.asks, canvass.won) == (True, False)
    canvass.granted("n3")
    assert canvass.won


def test_late_answers_count_for_nothing():
    """Before a round and after it."""
    canvass = PreVoteRound("n1", 3)
    canvass.granted("n2")
    assert not canvass.asks
    canvass.begin()
    canvass.granted("n2")
    canvass.end()
    canvass.granted("n2")
    assert (canvass.asks, canvass.won) == (False, False)
