"""Session bodies: every declared message round-trips, and values out of their range are violations."""

from __future__ import annotations

import msgspec
import pytest

from remoting.protocol.bodies import session_body as sb
from remoting.protocol.bodies.session_body import (
    HISTORY_BIT,
    SHARED_BIT,
    SharedMember,
    SharedSettle,
    SharedSettled,
    SharedTake,
    SharedTaken,
    decode,
    decode_given,
    encode,
    encode_given,
    is_shared_place,
)
from remoting.protocol.errors import RemoteViolation

MESSAGES = [
    sb.SessionOpen("dev-1", clean=False, user=None, expiry_s=0xFFFFFFFF),
    sb.SessionOpen("dev-1", False, "anna", 5, sb.WillSpec(b"a/b", b"gone", 1, True, 9, [(b"k", b"v")]), 77),
    sb.SessionFlow("dev-1", 3, [1], [2], [3], [(4, 7, 12)]),
    sb.FlowBatch([sb.SessionFlow("dev-1", 3)]),
    sb.FlowNoted([0, 7]),
    sb.SessionOpened(
        present=True,
        epoch=3,
        subscriptions=[sb.SessionSubscription("a/+", 1, 7, 12)],
        inflight=[sb.InflightEntry(1, 7, 11), sb.InflightEntry(2, 7, 12, sb.PHASE_PUBREL, 2)],
        received=[3, 9],
        expiry_s=60,
    ),
    sb.SessionClose("dev-1", 3, durable=True, offsets=[(7, 12)], inflight=[sb.InflightEntry(1, 7, 11)]),
    sb.SubscribeRequest(
        "dev-1", 3, durable=True, filters=[sb.FilterRequest("a/+", 1, 0b1001, 7), sb.FilterRequest("b", 0)]
    ),
    sb.Subscribed([sb.SubscribeResult(1, 7, 12), sb.SubscribeResult(sb.FAILURE, 0, 0)], [(0, [4096, 8192])]),
    sb.UnsubscribeRequest("dev-1", 3, durable=True, filters=["a/+"]),
    sb.Unsubscribed([True, False]),
    sb.SessionFenced("dev-1", 4),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message):
    assert sb.decode(type(message), sb.encode(message)) == message


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (sb.SessionOpen, ["c", False, None, -1]),
        (sb.SessionOpen, ["c", False]),
        (sb.InflightEntry, [-1, 1, 1]),
        (sb.InflightEntry, [65_536, 1, 1]),
        (sb.SessionSubscription, ["f", 3, 0, 0]),
        (sb.SessionSubscription, ["f", 1, 2**32, 0]),
        (sb.SessionFenced, ["c", -1]),
        (sb.SubscribeRequest, ["c", 1, True, [["f", 9]]]),
    ],
)
def test_values_out_of_range_are_violations(kind, values):
    with pytest.raises(RemoteViolation, match=f"malformed {kind.__name__}"):
        sb.decode(kind, msgspec.msgpack.encode(values))


GIVEN = [(7, 12, b"first record"), (9, 2**40, b""), (7, 13, b"x" * 300)]


@pytest.mark.parametrize(
    "message",
    [
        SharedTake([SharedMember(1, "c", 2**33, "$share/g/a", 64, [1, 2**40])]),
        SharedTaken([True, False]),
        SharedSettle([SharedSettled(1, -5, [1, 2], [3]), SharedSettled(2, 9, sent=[4])]),
    ],
)
def test_msgpack_round_trip(message) -> None:
    """What is sent arrives."""
    assert decode(type(message), encode(message)) == message


def test_given_round_trip() -> None:
    """Records arrive as views, each with its member."""
    assert [(handle, offset, bytes(record)) for handle, offset, record in decode_given(encode_given(GIVEN))] == GIVEN
    assert decode_given(encode_given([])) == []


def test_a_cut_or_stretched_body_is_a_violation() -> None:
    """Nothing else is raised for a damaged body."""
    body = encode_given(GIVEN)
    for end in range(len(body)):
        with pytest.raises(RemoteViolation):
            decode_given(body[:end])
    with pytest.raises(RemoteViolation):
        decode_given(body + b"x")


def test_a_place_of_a_group_is_distinguished_from_those_in_the_log() -> None:
    """A retained message's place, and one before a queue, have other bits set too."""
    places = (7, 7 | SHARED_BIT, 7 | HISTORY_BIT, 0xFFFF_FFFF)
    assert [is_shared_place(place) for place in places] == [False, True, False, False]
