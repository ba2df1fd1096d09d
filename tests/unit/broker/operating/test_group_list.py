"""Consumer groups page by page, by name and by lag."""

from __future__ import annotations

from typing import Any

import pytest

from broker.operating import group_list as module
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from tests.unit.broker.operating.asking import asked, publish


async def commit(running: Any, group: str, offset: int, topic: str = "plant") -> None:
    """Let a group have read so much of the queue that messages of `plant/1` are in."""
    queue = await queue_of(running, topic)
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}
    assert await asked(running, Code.UPDATE_CONSUMER_OFFSET, **fields) is None


async def queue_of(running: Any, topic: str) -> int:
    (found,) = (await asked(running, Code.TOPIC_LIST, topic=topic))["topics"]
    return next((one["queue"] for one in found["queues"] if one["max"]), 0)


async def names(running: Any, **fields: str) -> list[str]:
    return [row["name"] for row in (await asked(running, Code.GROUP_LIST, **fields))["groups"]]


async def test_pages_and_searches(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP", 2)
    await publish(running, *[b"plant/1"] * 3)
    assert await asked(running, Code.GROUP_LIST) == {"groups": [], "next": "", "total": 0}
    for name in ("d", "b", "ab", "c", "a"):
        await commit(running, name, 1)
    for _ in range(2):  # the first page without an order of names, then with one
        first = await asked(running, Code.GROUP_LIST, limit="2")
        assert ([row["name"] for row in first["groups"]], first["next"], first["total"]) == (["a", "ab"], "ab", 5)
        assert await names(running, after="ab") == ["b", "c", "d"]
        assert await names(running, contains="b") == ["ab", "b"]
        assert await names(running, contains="b", limit="1", after="ab") == ["b"]
    await asked(running, Code.DELETE_SUBSCRIPTIONGROUP, groupName="b", cleanOffset="true")
    await commit(running, "bb", 1)
    assert await names(running, after="ab") == ["bb", "c", "d"]
    assert (await asked(running, Code.GROUP_LIST, limit="0"))[0] == ResponseCode.INVALID_PARAMETER
    assert (await asked(running, Code.GROUP_LIST, order="size"))[0] == ResponseCode.INVALID_PARAMETER


async def test_a_row_has_the_lag_in_messages_and_seconds(running: Any) -> None:
    await publish(running, *[b"plant/1"] * 3)
    running.clock.advance_ms(60_000)
    await publish(running, *[b"plant/1"] * 2)
    await commit(running, "behind", 1)
    await commit(running, "done", 5)
    (behind, done) = (await asked(running, Code.GROUP_LIST))["groups"]
    assert behind == {
        "name": "behind", "topics": ["plant"], "topics_total": 1, "queues": 1, "lag": 4, "lag_s": 60.0, "members": 0,
    }  # fmt: skip
    assert (done["lag"], done["lag_s"]) == (0, 0.0)


async def test_the_groups_furthest_behind_come_first(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUES_A_TURN", 1)
    await publish(running, *[b"plant/1"] * 5)
    for name, offset in (("a", 5), ("b", 1), ("c", 3), ("d", 1)):
        await commit(running, name, offset)
    assert await names(running, order="lag") == ["b", "d", "c", "a"]
    assert await names(running, order="lag", limit="2") == ["b", "d"]
    assert await names(running, order="lag", contains="c") == ["c"]


async def test_a_search_by_lag_finds_groups_beyond_the_furthest(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FURTHEST_MAX", 1)
    await publish(running, *[b"plant/1"] * 5)
    for name, offset in (("a", 5), ("b", 1)):
        await commit(running, name, offset)
    assert await names(running, order="lag") == ["b"]
    assert await names(running, order="lag", contains="a") == ["a"]


async def test_a_page_ends_where_its_queues_are_too_many(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUES_MAX", 2)
    await publish(running, b"plant/1")
    for name in "abc":
        await commit(running, name, 0)
    first = await asked(running, Code.GROUP_LIST)
    assert ([row["name"] for row in first["groups"]], first["next"]) == (["a", "b"], "b")
    assert await names(running, after="b") == ["c"]
