"""Everybody who may become master is required: members until they are out for certain, joiners from the first word."""

from __future__ import annotations

import pytest

from broker.replication.sync_state_set import SyncStateSet
from remoting.protocol.errors import LocalMisuse


def test_a_joiner_is_required_from_its_proposal_on():
    """The controllers may have committed it before their answer arrives."""
    members = SyncStateSet({1}, 7)
    proposal = members.propose({1, 2})
    assert proposal.base_epoch == 7
    assert members.effective == {1, 2}
    assert members.committed == {1}
    assert members.learn({1, 2}, 8)
    assert members.committed == members.effective == {1, 2}
    assert members.open is None


def test_a_leaver_is_required_until_the_controllers_say_it_left():
    """Before that it can still be elected."""
    members = SyncStateSet({1, 2}, 7)
    members.propose({1})
    assert members.effective == {1, 2}
    members.learn({1}, 8)
    assert members.effective == {1}


def test_a_refusal_ends_a_proposal_and_an_old_answer_changes_nothing():
    """Sent once and refused: it can be committed no more."""
    members = SyncStateSet({1}, 7)
    first = members.propose({1, 2})
    members.refused(first)
    assert members.effective == {1}
    second = members.propose({1, 3})
    members.refused(first)
    members.unanswered(first)
    assert members.open is second
    assert members.effective == {1, 3}
    assert second.number > first.number


def test_an_unanswered_proposal_is_required_until_a_newer_set_voids_it():
    """It may lie in a queue somewhere and be committed later."""
    members = SyncStateSet({1}, 7)
    members.unanswered(members.propose({1, 2}))
    assert members.effective == {1, 2}
    assert members.doubtful == {2}
    members.refused(members.propose({1, 3}))
    assert members.effective == {1, 2}
    assert not members.learn({1}, 7)
    assert members.effective == {1, 2}
    assert members.learn({1}, 8)
    assert members.effective == {1}
    assert members.doubtful == frozenset()


def test_one_proposal_at_a_time():
    """A second one could not be told from the first by its set epoch."""
    members = SyncStateSet({1}, 7)
    members.propose({1, 2})
    with pytest.raises(LocalMisuse):
        members.propose({1, 3})
