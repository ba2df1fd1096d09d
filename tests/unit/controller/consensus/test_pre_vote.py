"""A round of asking: won by a majority, complete when everybody has answered, and late answers count for nothing."""

from __future__ import annotations

from controller.consensus.raft_node import PreVoteRound


def test_a_majority_wins():
    """Itself included, each controller once."""
    canvass = PreVoteRound("n1", 5)
    canvass.begin()
    canvass.granted("n2")
    canvass.granted("n2")
    assert (canvass.asks, canvass.won, canvass.complete) == (True, False, False)
    canvass.granted("n3")
    assert canvass.won


def test_newcomers_complete_it_in_any_order():
    """Whether the last one to answer grants or is a newcomer."""
    for last in ("granted", "newcomer"):
        canvass = PreVoteRound("n1", 3)
        canvass.begin()
        canvass.newcomer("n2")
        assert not canvass.complete
        getattr(canvass, last)("n3")
        assert canvass.complete
        assert canvass.won == (last == "granted")


def test_late_answers_count_for_nothing():
    """Before a round and after it."""
    canvass = PreVoteRound("n1", 3)
    canvass.granted("n2")
    canvass.newcomer("n3")
    assert (canvass.asks, canvass.complete) == (False, False)
    canvass.begin()
    canvass.granted("n2")
    canvass.end()
    canvass.granted("n2")
    assert (canvass.asks, canvass.won) == (False, False)
