"""Reports of migrations: what is kept of them, for how long, and how many."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from broker.migration.followers import (
    NAMES_MAX,
    REASON_CHARS_MAX,
    REPORT_MS,
    STANDING_MAX,
    FollowerReport,
    FollowerReports,
    StandingQueue,
)
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command


def report(queues: int, reason: str = "disk full") -> FollowerReport:
    return FollowerReport("", [StandingQueue("orders", f"old/broker-a/{queue}", reason, 7) for queue in range(queues)])


def test_a_report_counts_for_a_while() -> None:
    followers = FollowerReports()
    followers.tell("old", report(1), 1_000)
    told = followers.last("old", 1_000 + REPORT_MS - 1)
    assert told is not None
    assert (told.standing[0].reason, told.standing_count) == ("disk full", 1)
    assert followers.last("old", 1_000 + REPORT_MS) is None
    assert followers.last("other", 1_000) is None


def test_reports_are_bounded() -> None:
    followers = FollowerReports()
    for number in range(NAMES_MAX + 1):
        followers.tell(str(number), report(STANDING_MAX + 1, "x" * 2 * REASON_CHARS_MAX), 0)
    assert followers.last("0", 0) is None
    told = followers.last(str(NAMES_MAX), 0)
    assert told is not None
    assert (len(told.standing), told.standing_count) == (STANDING_MAX, STANDING_MAX + 1)
    assert {len(one.reason) for one in told.standing} == {REASON_CHARS_MAX}


async def test_a_broker_shows_what_it_was_told_and_refuses_what_is_no_report(running: Any) -> None:
    connection = running.connect()
    asked = Command(RequestCode.FOLLOWER, fields={"source": "old"})
    assert (await connection.request(asked)).body == b"null"
    for body in (b"", b"[]", b'{"standing":7}', b'{"standing":[{"topic":"t"}]}', b"\xff"):
        told = Command(RequestCode.TELL_FOLLOWER, fields={"source": "old"}, body=body)
        assert (await connection.request(told)).code == ResponseCode.INVALID_PARAMETER, body
    for name in ("", "x" * 256):
        told = Command(RequestCode.TELL_FOLLOWER, fields={"source": name}, body=b"{}")
        assert (await connection.request(told)).code == ResponseCode.INVALID_PARAMETER, name
    body = msgspec.json.encode(report(1))
    told = Command(RequestCode.TELL_FOLLOWER, fields={"source": "old"}, body=body)
    assert (await connection.request(told)).code == 0
    shown = json.loads((await connection.request(Command(RequestCode.FOLLOWER, fields={"source": "old"}))).body)
    assert (shown["standing"][0]["reason"], shown["standing_count"]) == ("disk full", 1)
