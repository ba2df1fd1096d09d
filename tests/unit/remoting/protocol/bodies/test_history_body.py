"""Positions before a queue, and the request in both directions."""

from __future__ import annotations

import pytest

from remoting.protocol.bodies.session_body import (
    FINISHED,
    HistoryReply,
    HistoryRequest,
    HistoryStart,
    decode,
    encode,
    pack_before,
    unpack_before,
)


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (HistoryStart(from_ms=0), (0, 0, 0)),
        (HistoryStart(from_ms=1_700_000_000_000), (0, 1_700_000_000_000, 0)),
        (HistoryStart(from_offset=0), (0, 0, 0)),
        (HistoryStart(last=7), (0, 0, 7)),
        (HistoryStart(last=10**18 - 1), (0, 0, 10**18 - 1)),
    ],
)
def test_a_requested_start_is_below_every_position(wish: HistoryStart, told: tuple[int, int, int]) -> None:
    """So that positions only rise."""
    place = pack_before(wish)
    assert -(2**63) <= place < 0
    assert unpack_before(place) == told
    assert unpack_before(64) == (64, 0, 0)
    assert unpack_before(FINISHED)[0] == FINISHED


def test_round_trip() -> None:
    """What is sent arrives."""
    for message in (HistoryRequest(7, "a/+", 64, 0, 3), HistoryReply(99, False, b"records", 2)):
        assert decode(type(message), encode(message)) == message
