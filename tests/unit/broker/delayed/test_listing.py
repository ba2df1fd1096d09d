"""TIMERS: the numbers, pages in order of due time over spans, one message, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.delayed import listing
from broker.delayed.buckets import BUCKET_MS
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from tests.unit.broker.delayed.test_recall import recalling, sending

HOUR_MS = 3_600_000


async def asked(bench, **fields: str) -> dict[str, Any]:
    reply = await bench.connect().request(Command(RequestCode.TIMERS, fields=fields))
    assert reply.code == 0, reply.remark
    return json.loads(reply.body)


async def send(bench, *delays_ms: int) -> list[str]:
    """Send messages with these delays, numbered; returns their handles."""
    connection = bench.connect()
    replies = [await connection.request(sending(number, delay)) for number, delay in enumerate(delays_ms)]
    return [reply.fields["recallHandle"] for reply in replies]


async def test_the_numbers(running) -> None:
    """By time to delivery; what was recalled is not counted."""
    assert await asked(running) == {
        "waiting": 0, "next_due_ms": None,
        "by_delay": {"5m": 0, "1h": 0, "6h": 0, "1d": 0, "3d": 0, "7d": 0, "later": 0}, "fullest_second": None,
    }  # fmt: skip
    handles = await send(running, 1_000, 2_000, 2 * HOUR_MS, 30 * HOUR_MS)
    await running.connect().request(recalling(handles[1]))
    numbers = await asked(running)
    assert numbers["waiting"] == 3
    assert {label: count for label, count in numbers["by_delay"].items() if count} == {"5m": 1, "6h": 1, "3d": 1}
    running.broker.delayed.messages.due(running.clock.now_ms())
    assert (await asked(running))["next_due_ms"] == running.clock.now_ms() + 1_000


async def test_pages_in_order_of_time(running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over spans and steps, each message once, with the handle of its answer."""
    monkeypatch.setattr(listing, "SEARCH_STEP", 3)
    delays = [5_000 * (number * 7 % 20 + 1) + BUCKET_MS * (number % 3) for number in range(20)]
    handles = await send(running, *delays)
    await running.connect().request(recalling(handles[4]))
    after, found, pages = "0/0", [], 0
    while True:
        page = await asked(running, limit="6", after=after)
        found += page["timers"]
        after, pages = page["next"], pages + 1
        if not page["more"]:
            break
    assert pages == 4
    expected = sorted((delay, handles[number]) for number, delay in enumerate(delays) if number != 4)
    now_ms = running.clock.now_ms()
    assert [(one["due_ms"] - now_ms, one["handle"]) for one in found] == expected
    assert {one["topic"] for one in found} == {"orders"}
    assert len((await asked(running, limit="99"))["timers"]) == 19


async def test_one_message(running) -> None:
    handles = await send(running, 1_000, 2_000)
    found = (await asked(running, handle=handles[1]))["timer"]
    assert (found["id"], found["body_bytes"], found["handle"]) == (f"{1:032d}", 1, handles[1])
    assert found["properties"]["TIMER_DELAY_MS"] == "2000"
    await running.connect().request(recalling(handles[1]))
    reply = await running.connect().request(Command(RequestCode.TIMERS, fields={"handle": handles[1]}))
    assert reply.code == ResponseCode.ILLEGAL_OPERATION


@pytest.mark.parametrize(
    "fields",
    [{"limit": "0"}, {"limit": "x"}, {"limit": "1", "after": "5"}, {"limit": "1", "after": "a/b"}, {"handle": "x"}],
)
async def test_invalid_requests(running, fields: dict[str, str]) -> None:
    reply = await running.connect().request(Command(RequestCode.TIMERS, fields=fields))
    assert reply.code == ResponseCode.INVALID_PARAMETER


async def test_it_is_for_administrators(running) -> None:
    running.judge_by(lambda _identity, action, _resource: action == "publish")
    reply = await running.connect().request(Command(RequestCode.TIMERS))
    assert reply.code == ResponseCode.NO_PERMISSION
