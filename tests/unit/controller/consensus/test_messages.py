"""The library's dictionaries survive as our types; what has no type cannot be sent at all."""

from __future__ import annotations

import pytest

from controller.consensus.wire import (
    Append,
    Founded,
    Install,
    Join,
    JoinReply,
    PreGranted,
    PreVote,
    from_library,
    to_library,
)

APPEND = {"type": "append_entries", "term": 3, "commit_index": 2}
DICTIONARIES = [
    {"type": "request_vote", "term": 3, "last_log_index": 2, "last_log_term": 1},
    {"type": "response_vote", "term": 3},
    {"type": "next_node_idx", "term": 3, "next_node_idx": 2, "reset": False, "success": True},
    {**APPEND, "prevLogIdx": 1, "prevLogTerm": 1, "entries": [(b"x", 2, 3)]},
]


@pytest.mark.parametrize("message", DICTIONARIES, ids=lambda message: message["type"])
def test_dictionaries_survive(message):
    """There and back."""
    assert to_library(from_library(message)) == message


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        ((b"data", True, False), Install(3, 2, b"data", True, False)),
        (None, Install(3, 2)),
        (False, Install(3, 2)),
    ],
)
def test_pieces_of_snapshots(piece, message):
    """The library sees a leader, we see the piece; without one it is only a sign of life."""
    assert from_library({**APPEND, "serialized": piece}) == message
    assert to_library(message) == {**APPEND, "own": message}


@pytest.mark.parametrize(
    "message", [PreVote(3, 2, 1), PreGranted(3), Founded(3), Join(3, 1), JoinReply(3, 1, True, 2, 1)]
)
def test_our_own(message):
    """They pass whole."""
    assert to_library(message) == {"type": "own", "term": 3, "own": message}


@pytest.mark.parametrize("message", [{"type": "apply_command", "term": 1}, {"type": "timeout_now", "term": 1}])
def test_what_we_do_not_use_cannot_be_sent(message):
    """It is our own bug."""
    with pytest.raises(AssertionError):
        from_library(message)


def test_commands_in_pieces_cannot_be_sent():
    """The receiver would have to unpickle them."""
    with pytest.raises(AssertionError, match="larger than a batch"):
        from_library({**APPEND, "transmission": "start", "data": b"", "prevLogIdx": 1, "prevLogTerm": 1})
    assert isinstance(from_library(DICTIONARIES[-1]), Append)
