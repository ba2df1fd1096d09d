"""Plants: a bug is in its function for one test, whoever imported that, and one that does not fit is found out."""

from __future__ import annotations

import pytest

from controller.raft.log import RaftLog
from remoting.protocol.voting import judge
from tests.support.plants import Plant, catches
from tests.unit.controller.raft.group import FIRST

ALWAYS = Plant("accepts", "remoting.protocol.voting:judge", "VoteAnswer.ACCEPT)", "0)")


@catches(Plant("begins-at-zero", "controller.raft.log:RaftLog.first_index", "self._entries[0][1]", "0"))
def test_a_test_fails_with_its_plant_and_passes_without():
    """Also in a property; the planted run counts as passed because it fails."""
    assert RaftLog([FIRST], 1).first_index == 1


def test_it_reaches_whoever_imported_the_function_and_ends_with_the_test():
    """The code is exchanged, not the name."""
    before = judge.__code__
    with pytest.MonkeyPatch.context() as patch:
        ALWAYS(patch)
        assert judge.__code__ is not before
    assert judge.__code__ is before


@pytest.mark.parametrize(
    ("where", "text", "said"),
    [
        ("controller.raft.log:RaftLog.nothing", "x", "there is no"),
        ("controller.raft.log:RaftLog.place", "not there", "0 times"),
        ("controller.raft.log:RaftLog.place", "index", "3 times"),
    ],
)
def test_a_plant_that_does_not_fit_is_found_out_before_the_test_runs(where, text, said):
    """It would count as caught otherwise: whatever fails looks the same."""
    with pytest.raises(ValueError, match=said):
        catches(Plant("lost", where, text, "y"))
