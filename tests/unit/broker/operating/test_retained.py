"""Retained messages page by page, and clearing one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.operating import retained as module
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import encode_mqtt_image
from remoting.protocol.records.properties import EXPIRY
from remoting.protocol.records.record import FLAG_RETAIN
from remoting.protocol.records.topics import matches
from tests.unit.broker.operating.asking import asked, asked_raw, publish

RETAIN = 1 | FLAG_RETAIN


async def topics(running, **fields: str) -> list[str]:
    return [row["topic"] for row in (await asked(running, Code.RETAINED_LIST, **fields))["retained"]]


async def test_pages_filters_and_searches(running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP", 2)
    await publish(running, b"b/2", b"a/1", b"a/2", b"c", b"a/1/x", flags=RETAIN)
    await publish(running, b"not/kept")
    first = await asked(running, Code.RETAINED_LIST, limit="2")
    assert ([row["topic"] for row in first["retained"]], first["next"], first["total"]) == (
        ["a/1", "a/1/x"],
        "a/1/x",
        5,
    )
    assert await topics(running, after=first["next"]) == ["a/2", "b/2", "c"]
    assert await topics(running, filter="+/2") == ["a/2", "b/2"]
    assert await topics(running, filter="a/#", contains="1") == ["a/1", "a/1/x"]
    assert (await asked(running, Code.RETAINED_LIST, filter="a/#/b"))[0] == ResponseCode.INVALID_PARAMETER
    assert (await asked(running, Code.RETAINED_LIST, limit="0"))[0] == ResponseCode.INVALID_PARAMETER


@given(st.lists(st.sampled_from(["a", "b", "+", ""]), min_size=1, max_size=4), st.booleans(), st.data())
def test_topics_of_a_filter_begin_with_what_is_literal_in_it(levels: list[str], rest: bool, data) -> None:
    wanted = "/".join([*levels, "#"] if rest else levels)
    topic = "/".join(data.draw(st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=5)))
    if topic and matches(wanted.encode(), topic.encode()):
        assert topic.startswith(module.literal_beginning(wanted))


async def test_pages_go_on_behind_a_filter(running) -> None:
    await publish(running, b"a/1/t", b"a/2/t", b"a/2/u", b"a/3/t", b"b/1/t", flags=RETAIN)
    first = await asked(running, Code.RETAINED_LIST, filter="a/+/t", limit="2")
    assert ([row["topic"] for row in first["retained"]], first["next"]) == (["a/1/t", "a/2/t"], "a/2/t")
    assert await topics(running, filter="a/+/t", after="a/2/t", limit="2") == ["a/3/t"]
    await asked(running, Code.RETAINED_CLEAR, topic="a/3/t")
    await publish(running, b"a/4/t", flags=RETAIN)
    assert await topics(running, filter="a/+/t", after="a/2/t", limit="2") == ["a/4/t"]
    assert await topics(running, filter="b/1/t") == ["b/1/t"]


async def test_a_line_says_what_is_retained_but_not_its_payload(running) -> None:
    now_ms = running.clock.now_ms()
    image = encode_mqtt_image(b"a", b"secret", RETAIN, now_ms, b"c", properties=[(EXPIRY, b"5")])
    assert await asked_raw(running, Code.APPEND_MANY, image) == 0
    (row,) = (await asked(running, Code.RETAINED_LIST))["retained"]
    assert row.pop("position") > 0
    assert row == {"topic": "a", "bytes": 6, "qos": 1, "stored_ms": now_ms, "expires_ms": now_ms + 5_000}


async def test_a_topic_is_cleared_for_good(running) -> None:
    await publish(running, b"a", b"b", flags=RETAIN)
    assert await asked(running, Code.RETAINED_CLEAR, topic="a") == {"topic": "a", "cleared": True}
    assert await asked(running, Code.RETAINED_CLEAR, topic="a") == (
        ResponseCode.QUERY_NOT_FOUND, "the topic 'a' has no retained message",
    )  # fmt: skip
    await running.restart()
    assert await topics(running) == ["b"]


async def test_rights_are_asked_for(running) -> None:
    judged = []
    running.judge_by(lambda identity, action, resource: judged.append(action) or False)
    for code in (Code.RETAINED_LIST, Code.RETAINED_CLEAR):
        assert (await asked(running, code, topic="a"))[0] == ResponseCode.NO_PERMISSION
    assert judged[:2] == ["monitor", "admin"]
