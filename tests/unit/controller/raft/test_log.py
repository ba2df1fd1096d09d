"""The entries in memory: what is where, what may be cut, and what a state leaves of them."""

from __future__ import annotations

import pytest

from controller.raft.log import RaftLog
from tests.unit.controller.raft.group import FIRST, entries


def log_of(*terms, committed=1):
    return RaftLog([FIRST, *entries(*terms)], committed)


def test_entries_are_found_by_their_index():
    """And come in parts of at most so many bytes, of at least one entry."""
    log = log_of(1, 1, 2)
    assert (log.first_index, log.last_index, log.place, len(log)) == (1, 4, (2, 4), 4)
    assert [log.term(index) for index in range(6)] == [None, 0, 1, 1, 2, None]
    assert [index for _, index, _ in log.entries(2, 5, 4)] == [2, 3]
    assert [index for _, index, _ in log.entries(2, 5, 1)] == [2]


def test_terms_are_found_at_both_of_their_ends():
    """What a refusal names, and where a leader goes on."""
    log = log_of(1, 2, 2, 4)
    assert (log.first_of_term(4), log.first_of_term(5)) == (3, 5)
    assert [log.last_up_to_term(term) for term in (1, 2, 3, 4)] == [2, 4, 0, 5]


def test_only_what_contradicts_goes():
    """Entries that are here already are not new, and the first that differs takes all behind it along."""
    log = log_of(1, 1, 1)
    assert log.follow(entries(1, 1)) == []
    assert log.last_index == 4
    new = entries(2, 2, start=3)
    assert log.conflict(new) == 3
    assert log.follow(new) == new
    assert (log.place, log.cut_from, log.stable) == ((2, 4), 3, 2)


def test_nothing_committed_is_cut():
    with pytest.raises(AssertionError):
        log_of(1, 1, committed=3).cut(3)


def test_what_was_cut_meanwhile_does_not_become_durable():
    """A write that was under way may have been of an entry that is another one now."""
    log = log_of(1)
    log.append(b"\x00x", 1)
    log.follow(entries(2, start=3))
    log.persisted(3, 1)
    assert log.stable == 2
    log.persisted(3, 2)
    assert log.stable == 3


def test_a_state_leaves_its_last_entry_in_front():
    """As it is when the log has it, in the place of everything when not."""
    log = log_of(1, 1, 1)
    log.forget(3)
    assert (log.first_index, log.last_index) == (3, 4)
    log.replace((b"\x00x", 9, 5))
    assert (log.first_index, log.place, log.committed, log.stable) == (9, (5, 9), 9, 9)
