"""Term, vote and entries are on disk before the library continues; contradictory files are refused."""

from __future__ import annotations

import os

import pytest

from controller.consensus.journal import Vote, load
from controller.consensus.log_face import LogFace
from remoting.protocol.errors import LocalMisuse

MEMBERS = ("n1", "n2", "n3")


@pytest.fixture
def face(tmp_path):
    """Four entries, the first of which every log has."""
    made = LogFace(tmp_path, MEMBERS)
    for index in range(1, 5):
        made.add(b"%d" % index, index, 1)
    made.sync()
    return made


def again(face, tmp_path):
    face.close()
    return LogFace(tmp_path, MEMBERS)


def test_term_and_vote_are_durable_at_once(face, tmp_path):
    """Before any other node can learn of them."""
    face.setCurrentTerm(7, "n2")
    assert load(tmp_path / "vote", Vote) == Vote(7, "n2", 1, MEMBERS)
    found = LogFace(tmp_path, MEMBERS)
    assert (found.getCurrentTerm(), found.getVotedForNodeId()) == (7, "n2")
    found.setCurrentTerm(8, "n3")
    assert load(tmp_path / "vote", Vote) == Vote(8, "n3", 1, MEMBERS, found.voter)
    found.close()


def test_how_far_is_committed_is_never_said_before_the_entries_are_there(face, tmp_path, monkeypatch):
    """They are synced first; an unchanged vote is not written again."""
    order = []
    monkeypatch.setattr(face.journal, "sync", lambda: order.append(len(face)))
    face.add(b"5", 5, 1)
    face.setRaftCommitIndex(5)
    face.onOneSecondTimer()
    face.onOneSecondTimer()
    assert order == [5]
    assert load(tmp_path / "vote", Vote).committed == 5


def test_it_reads_like_a_list(face):
    """Ends and slices, as the library asks for them."""
    assert (len(face), face[0][1], face[-1][1]) == (4, 1, 4)
    assert [entry[1] for entry in face[1:3]] == [2, 3]
    assert [entry[1] for entry in face[2:]] == [3, 4]
    face.deleteEntriesFrom(3)
    face.deleteEntriesTo(1)
    assert [entry[1] for entry in face[:]] == [2, 3]


def test_a_journal_that_lost_what_was_committed_is_refused(face, tmp_path):
    """Its controller would vote as if it never had it."""
    face.setRaftCommitIndex(4)
    face.close()
    os.truncate(tmp_path / "journal", 60)
    with pytest.raises(LocalMisuse, match="4 was committed"):
        LogFace(tmp_path, MEMBERS)
    (tmp_path / "journal").unlink()
    with pytest.raises(LocalMisuse, match="4 was committed"):
        LogFace(tmp_path, MEMBERS)


def test_newcomers_are_no_voters_and_copies_are(face, tmp_path):
    """Once it has what is committed it is one for ever."""
    assert not face.voter
    face.become_voter()
    assert again(face, tmp_path).voter
    (tmp_path / "vote").unlink()
    assert LogFace(tmp_path, MEMBERS).voter
