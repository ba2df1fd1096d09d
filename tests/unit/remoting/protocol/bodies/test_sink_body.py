"""Sink bodies: every declared message round-trips, and values out of their range are violations."""

from __future__ import annotations

import msgspec
import pytest

from remoting.protocol.bodies import sink_body as sb
from remoting.protocol.errors import RemoteViolation

MESSAGES = [
    sb.StageReply(10),
    sb.CommitBatch("sink", 7, [sb.StageHandle(0, 1, 10), sb.StageHandle(1, 0, 0)]),
    sb.CommitBatch("sink", 7, [], [sb.Planned("broker-b", [sb.StageHandle(0, 1, 10)])], prepare=True),
    sb.CommitBatch("sink", 7, [], digest=sb.BatchDigest(10, 0, 2**64 - 1, 1, "query")),
    sb.BatchCommitted(already=False, count=10),
    sb.BatchCommitted(already=True, count=0, digest=sb.BatchDigest(0, 0, 0, 1)),
    sb.LedgerState(3, [sb.Planned("broker-b", [])]),
    sb.AbortBatch("sink", 7),
    sb.Ledger("sink"),
    sb.LedgerState(sb.NO_BATCH),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message):
    assert sb.decode(type(message), sb.encode(message)) == message


@pytest.mark.parametrize(
    ("kind", "values"),
    [(sb.StageReply, [-1]), (sb.LedgerState, [-2]), (sb.StageHandle, [0, -1, 0]), (sb.CommitBatch, ["s", 1])],
)
def test_values_out_of_range_are_violations(kind, values):
    with pytest.raises(RemoteViolation, match=f"malformed {kind.__name__}"):
        sb.decode(kind, msgspec.msgpack.encode(values))


def test_bodies_of_earlier_releases_have_no_digest():
    """And theirs ignore it."""
    assert sb.decode(sb.LedgerState, msgspec.msgpack.encode([3, []])).digest is None
    assert sb.decode(sb.CommitBatch, msgspec.msgpack.encode(["s", 1, [], [], False])).digest is None
    assert sb.decode(sb.StageReply, msgspec.msgpack.encode([3, "more"])) == sb.StageReply(3)
