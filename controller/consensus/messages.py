"""The library's messages (dictionaries) as our types and back; what we do not use has no form on the wire.

Not used and so impossible to receive: forwarded commands, membership changes, transfers of leadership, versions and
entries in pieces; the library unpickles some of these. Pure.
"""

from __future__ import annotations

from typing import Any

from controller.consensus.wire import (
    Append,
    Founded,
    Granted,
    Install,
    Message,
    Newcomer,
    NextIndex,
    PreGranted,
    PreVote,
    RequestVote,
)


def from_library(message: dict[str, Any]) -> Message:
    """A message the library sends. An unknown kind is our own bug."""
    kind, term = message["type"], message["term"]
    if kind == "request_vote":
        return RequestVote(term, message["last_log_index"], message["last_log_term"])
    if kind == "response_vote":
        return Granted(term)
    if kind == "next_node_idx":
        return NextIndex(term, message["next_node_idx"], message["reset"], message["success"])
    assert kind == "append_entries", kind
    assert "transmission" not in message, "a command is larger than a batch"
    if "prevLogIdx" in message:
        entries = [(bytes(command), index, of_term) for command, index, of_term in message["entries"]]
        return Append(term, message["commit_index"], message["prevLogIdx"], message["prevLogTerm"], entries)
    piece, first, last = message["serialized"] or (b"", False, False)
    return Install(term, message["commit_index"], bytes(piece), first, last)


def to_library(message: Message) -> dict[str, Any]:
    """A message as the library takes it; snapshots and pre-votes are ours and stand in it whole under `own`."""
    if isinstance(message, PreVote | PreGranted | Newcomer | Founded):
        return {"type": "own", "term": message.term, "own": message}
    if isinstance(message, RequestVote):
        last = {"last_log_index": message.last_index, "last_log_term": message.last_term}
        return {"type": "request_vote", "term": message.term, **last}
    if isinstance(message, Granted):
        return {"type": "response_vote", "term": message.term}
    if isinstance(message, NextIndex):
        return {
            "type": "next_node_idx",
            "term": message.term,
            "next_node_idx": message.next_index,
            "reset": message.reset,
            "success": message.success,
        }
    shared = {"type": "append_entries", "term": message.term, "commit_index": message.committed}
    if isinstance(message, Append):
        before = {"prevLogIdx": message.before_index, "prevLogTerm": message.before_term}
        return {**shared, **before, "entries": message.entries}
    return {**shared, "own": message}
