"""Topics level by level: the index agrees with a plain computation, whatever the names."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.operating import topic_tree as module
from broker.operating.topic_tree import LevelQuestion, SmallestLevels, _levels_after, _searched
from broker.topics.sorted_names import IDLE_MS
from remoting.protocol.bodies.session_body import FilterRequest, SessionOpen, SessionOpened, SubscribeRequest
from remoting.protocol.bodies.session_body import decode as decode_session
from remoting.protocol.bodies.session_body import encode as encode_session
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.names import light_queue_name, topic_key
from remoting.protocol.records.record import FLAG_RETAIN
from tests.unit.broker.operating.asking import asked, publish

LEVEL = st.text(st.sampled_from("ab!\x01/ü"), max_size=3).map(lambda text: text.replace("/", ""))
TOPICS = st.lists(st.lists(LEVEL, min_size=1, max_size=4).map("/".join), max_size=20).map(lambda t: sorted({*t} - {""}))


@given(TOPICS, st.integers(0, 19), st.integers(1, 3))
def test_levels_agree_with_a_plain_computation(topics: list[str], at: int, step: int) -> None:
    """Also where a level is the beginning of another, and where levels have bytes below the slash."""
    keys = sorted(key for topic in topics if (key := topic_key(light_queue_name(topic.encode()))) is not None)
    parent = topics[at % len(topics)].rpartition("/")[0] if topics else ""
    head = f"{parent}/" if parent else ""
    expected = {topic[len(head) :].partition("/")[0] for topic in topics if topic.startswith(head)}
    prefix = head.encode().replace(b"/", b"\x00")
    found: list[bytes] = []
    level: bytes | None = None
    while True:
        page, level = _levels_after(keys, prefix, level, b"", step)
        found += page
        if level is None:
            break
    assert [one.decode() for one in found] == sorted(expected, key=str.encode)


@given(
    TOPICS, st.integers(0, 19), st.sampled_from([None, b"", b"a", b"ab"]), LEVEL, st.integers(1, 4), st.integers(1, 5)
)
def test_the_first_page_agrees_with_the_order(
    topics: list[str], at: int, after: bytes | None, contains: str, count: int, step: int
) -> None:
    """In any order of the keys, whatever is asked for."""
    keys = [topic.encode().replace(b"/", b"\x00") for topic in topics]
    prefix = keys[at % len(keys)].rpartition(b"\x00")[0] if keys else b""
    asked = LevelQuestion(prefix + b"\x00" if prefix else b"", after, contains.encode(), count)
    smallest = SmallestLevels(asked)
    mixed = keys[at % 7 :] + keys[: at % 7]
    for begin in range(0, len(mixed), step):
        smallest.add(mixed[begin : begin + step][::-1])
    searched = asyncio.run(_searched(sorted(keys), asked))
    assert (smallest.found(), len(keys)) == (searched.levels, searched.topics)


@given(TOPICS, st.sampled_from(["a", "b", "a/", "/", "a/b", "/a", "ü"]), st.integers(1, 4), st.integers(1, 4))
def test_a_search_looks_at_whole_names(topics: list[str], text: str, wanted: int, step: int) -> None:
    """Whatever the depth; page by page, in steps that end anywhere, every match is found once."""
    keys = sorted(topic.encode().replace(b"/", b"\x00") for topic in topics)
    expected: dict[str, int] = {}
    for topic in topics:
        if text in topic:
            end = topic.find("/", topic.find(text) + len(text))
            level = topic if end < 0 else topic[:end]
            expected[level] = expected.get(level, 0) + 1
    found: dict[str, int] = {}
    asked = LevelQuestion(b"", None, text.encode().replace(b"/", b"\x00"), wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STEP", step)
        patch.setattr(module, "LOOKED_MAX", 3)
        while True:
            page = asyncio.run(_searched(keys, asked))
            names = [(level.replace(b"\x00", b"/").decode(), below) for level, below in page.levels]
            assert not {name for name, _ in names} & found.keys()
            found |= names
            behind = page.levels[-1][0] if len(page.levels) == wanted else page.mark
            if behind is None:
                break
            asked = asked._replace(after=behind)
    assert found == expected


async def children(running, **fields: str) -> list[tuple[str, bool, int, int]]:
    rows = (await asked(running, Code.TOPIC_TREE, **fields))["children"]
    return [(row["level"], row["exists"], row["messages"], row["below"]) for row in rows]


async def test_levels_with_counts(running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP", 1)
    await publish(running, b"plant/1/temp", b"plant/1/temp", b"plant/2", b"plant/1", b"office", flags=1 | FLAG_RETAIN)
    assert await children(running) == [("office", True, 1, 0), ("plant", False, 4, 3)]
    assert await children(running, parent="plant") == [("1", True, 1, 1), ("2", True, 1, 0)]
    assert await children(running, parent="plant/1") == [("temp", True, 2, 0)]
    assert await children(running, parent="plant/1/temp") == []
    (row,) = (await asked(running, Code.TOPIC_TREE, parent="plant/1"))["children"]
    assert (row["topic"], row["retained"], row["children"]) == ("plant/1/temp", True, False)
    assert row["last_ms"] == running.clock.now_ms()
    assert (await asked(running, Code.TOPIC_TREE, parent="plant/+"))[0] == ResponseCode.INVALID_PARAMETER


async def test_pages_and_searches(running) -> None:
    await publish(running, *(b"t/%d" % number for number in range(25)))
    first = await asked(running, Code.TOPIC_TREE, parent="t", limit="2")
    assert ([row["level"] for row in first["children"]], first["next"], first["topics"]) == (["0", "1"], "1", 25)
    rest = await asked(running, Code.TOPIC_TREE, parent="t", after="23", limit="200")
    assert [row["level"] for row in rest["children"]] == ["24", "3", "4", "5", "6", "7", "8", "9"]
    assert rest["next"] == ""
    assert [row[0] for row in await children(running, parent="t", contains="1", after="1", limit="3")] == [
        "10",
        "11",
        "12",
    ]


async def test_a_topic_is_found_by_any_part_of_its_name(running, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first page, which finds no order, and by later ones, which may be short of what they looked for."""
    streets = [b"meters/street-%03d/house-%d/power" % (number, number % 3) for number in range(6)]
    await publish(running, *streets, b"meters")
    for _ in range(2):
        for text, wanted in {
            "meters/street-003/house-0/power": [("meters/street-003/house-0/power", True, 1, 0)],
            "street-003": [("meters/street-003", False, 0, 1)],
            "house-2": [("meters/street-002/house-2", False, 0, 1), ("meters/street-005/house-2", False, 0, 1)],
            "meters": [("meters", True, 7, 6)],
            "house-3": [],
        }.items():
            assert await children(running, contains=text) == wanted
    monkeypatch.setattr(module, "STEP", 1)
    monkeypatch.setattr(module, "LOOKED_MAX", 2)
    after, pages, found = "", 0, []
    while pages == 0 or after:
        page = await asked(running, Code.TOPIC_TREE, contains="street-005/h", after=after)
        found += [row["topic"] for row in page["children"]]
        pages, after = pages + 1, page["next"]
    assert (found, pages > 1) == (["meters/street-005/house-2"], True)


async def test_the_index_follows_the_log(running) -> None:
    """Filters are no topics; deleted topics leave; after a long silence it is made anew."""
    await publish(running, b"a/1")
    assert [row[0] for row in await children(running)] == ["a"]
    await publish(running, b"a/0", b"b")
    connection = running.connect()
    opened = await connection.request(Command(Code.SESSION_OPEN, body=encode_session(SessionOpen("c", True, None, 0))))
    epoch = decode_session(SessionOpened, opened.body).epoch
    wanted = SubscribeRequest("c", epoch, False, [FilterRequest("a/+", 0)])
    await connection.request(Command(Code.SUBSCRIBE, body=encode_session(wanted)))
    assert [row[0] for row in await children(running, parent="a")] == ["0", "1"]
    running.store.queues.delete([running.store.queues.find(light_queue_name(b"a/0"))])
    assert [row[0] for row in await children(running, parent="a")] == ["1"]
    running.clock.advance_ms(IDLE_MS + 1)
    running.broker.maintain(running.clock.now_ms())
    assert [row[0] for row in await children(running)] == ["a", "b"]
