"""The feature of topics: what it shows, and topics that keep less than the log."""

from __future__ import annotations

import msgspec
import pytest

from broker.store.state.state_tables import GroupRule
from broker.subscriptions.filters import Filters
from broker.topics import feature
from broker.topics.feature import TopicRetention, light_queues, rule_of, topic_of
from broker.topics.topics import Topics, TopicSettings
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import names

HOUR_MS = 3_600_000


def bounds(running, topic: bytes) -> tuple[int, int]:
    """Bounds of the light queue of an MQTT topic or filter."""
    queue = running.store.queues.find(names.light_queue_name(topic))
    assert queue is not None
    return running.store.reading.bounds(queue)


async def change(running, topic: str, attributes: str) -> None:
    fields = {"topic": topic, "readQueueNums": "2", "writeQueueNums": "2", "attributes": attributes}
    reply = await running.connect().request(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields), 5_000)
    assert reply.code == 0, reply.remark


async def publish(running, *topics: bytes) -> None:
    body = running.publish(*topics)
    assert (await running.connect().request(Command(RequestCode.APPEND_MANY, body=body), 5_000)).code == 0


async def upkeep(running) -> None:
    for _ in range(4):
        running.clock.advance_ms(60_000)
        running.store.maintain(running.clock.now_ms())
        await running.settle()


def parents(running, topic: str) -> list[int]:
    """How many messages each parent queue still shows."""
    found = [running.store.reading.bounds(queue) for queue in running.broker.topics.table.queue_ids(topic)]
    return [high - low for low, high in found]


async def test_a_topic_that_keeps_an_hour(running) -> None:
    """Older messages have expired from parent, exact and `plant/#` queues, not from those of other topics or of `#`."""
    await change(running, "plant", f"+retention.ms={HOUR_MS}")
    for topic_filter in (b"plant/#", b"#"):
        running.broker.subscriptions.filters.acquire(topic_filter)
    await publish(running, b"plant/a", b"plant/b", b"plant", b"line/a")
    running.clock.advance_ms(2 * HOUR_MS)
    await publish(running, b"plant/a", b"line/a")
    await upkeep(running)
    assert sum(parents(running, "plant")) == 1
    assert [bounds(running, name) for name in (b"plant/a", b"plant/b", b"plant", b"plant/#")] == [
        (1, 2), (1, 1), (1, 1), (3, 4)
    ]  # fmt: skip
    assert (bounds(running, b"line/a"), bounds(running, b"#")) == ((0, 2), (0, 6))
    await running.restart()
    assert (bounds(running, b"plant/a"), bounds(running, b"plant/b")) == ((1, 2), (1, 1))
    await change(running, "plant", "-retention.ms")
    running.clock.advance_ms(5 * HOUR_MS)
    await upkeep(running)
    assert sum(parents(running, "plant")) == 1
    await running.restart()
    assert bounds(running, b"plant/b") == (1, 1), "what was hidden stays hidden"


async def test_a_topic_of_a_size_and_a_rule_for_existing_messages(running) -> None:
    """Queues made before and after the rule follow it; a deleted topic leaves its light queues as they are."""
    for _ in range(10):
        await publish(running, b"plant/a", b"plant/b")
    await change(running, "plant", "+retention.bytes=1000")
    await publish(running, b"plant/new")
    await upkeep(running)
    assert 0 < sum(parents(running, "plant")) < 8
    low = bounds(running, b"plant/a")[0]
    assert low > 5
    assert bounds(running, b"plant/new") == (0, 1)
    running.broker.topics.table.delete("plant")
    await running.settle()
    assert bounds(running, b"plant/a")[0] == low
    assert running.store.groups.rules == {}


@pytest.mark.parametrize(
    ("topic", "mine", "others"),
    [
        (b"plant", [b"plant", b"plant/a", b"plant/#"], [b"plantation/a", b"plan", b"+/a", b"/plant"]),
        (b"%", [b"/a", b"/"], [b"a", b"%/a"]),
        (b"|TBW102", [b"TBW102/a", b"TBW102"], [b"TBW1020/a"]),
        (names.parent_topic(b"x" * 200), [b"x" * 200 + b"/a", b"x" * 200], [b"x" * 201 + b"/a"]),
    ],
)
def test_which_light_queues_belong_to_a_topic(bench, topic: bytes, mine: list[bytes], others: list[bytes]) -> None:
    """By the first level, however the parent topic writes it."""
    ids = bench.store.queues.open_all([names.light_queue_name(name) for name in mine + others])
    assert sorted(light_queues(bench.store, topic)) == ids[: len(mine)]
    assert {topic_of(names.light_queue_name(name)) for name in mine} == {topic}
    assert topic not in {topic_of(names.light_queue_name(name)) for name in others}


def test_names_outside_every_topic_belong_to_none(bench) -> None:
    assert topic_of(b"%LMQ%no.escape") == b""
    topics = Topics(bench.store, topics_max=5)
    TopicRetention(bench.store, topics)
    topics.put(TopicSettings(name="plant", attributes={"retention.ms": "1"}))
    bench.store.queues.open_all([b"%LMQ%no.escape", b"other"])
    Filters(bench.store, expiry_ms=1, filters_max=5, per_user_max=5, now_ms=0).acquire(b"plant/+")
    assert bench.store.groups.names() == [b"plant"]


def test_rules() -> None:
    """What is not set is the log's."""

    def rule(**attributes: str) -> GroupRule | None:
        named = {name.replace("_", "."): value for name, value in attributes.items()}
        return rule_of(TopicSettings(name="t", attributes=named), (7,))

    assert rule() is None
    assert rule(retention_ms="0") == GroupRule((7,), 0, 0)
    assert rule(retention_bytes="5") == GroupRule((7,), None, 5)
    assert rule(retention_ms="9", retention_bytes="5") == GroupRule((7,), 9, 5)


async def test_topics_with_their_messages_and_only_readable_ones(running) -> None:
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"a/2", b"b/1")))
    body = msgspec.json.decode((await connection.request(Command(RequestCode.TOPIC_LIST))).body)
    assert [(item["topic"], item["messages"], len(item["queues"])) for item in body["topics"]] == [
        ("a", 2, 4),
        ("b", 1, 4),
    ]
    running.judge_by(lambda _identity, action, resource: action == "locate" or resource == "b/#")
    body = msgspec.json.decode((await connection.request(Command(RequestCode.TOPIC_LIST))).body)
    assert [item["topic"] for item in body["topics"]] == ["b"]


async def test_a_page_of_topics_goes_on_in_the_middle_of_one(running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature, "STEP", 1)
    connection = running.connect()
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"b/1", b"a/1", b"ab/1", b"ab/1")))

    async def page(**fields: str) -> tuple[list[tuple[str, int]], str]:
        reply = await connection.request(Command(RequestCode.TOPIC_LIST, fields=fields))
        assert reply.code == 0, reply.remark
        body = msgspec.json.decode(reply.body)
        return [(one["topic"], queue["queue"]) for one in body["topics"] for queue in one["queues"]], body["next"]

    everything = [(topic, queue) for topic in ("a", "ab", "b") for queue in range(4)]
    for limit in (1, 3, 4, 5, 12):
        found, after = [], ""
        while True:
            rows, after = await page(limit=str(limit), after=after)
            found += rows
            assert len(rows) <= limit
            if not after:
                break
        assert found == everything, limit
    assert await page(limit="200", contains="b") == (everything[4:], "")
    assert await page(limit="200", topic="ab") == (everything[4:8], "")
    assert await page(limit="3", topic="ab", after="ab:1") == (everything[6:8], "")
    assert await page(limit="200", topic="none") == ([], "")
    reply = await connection.request(Command(RequestCode.TOPIC_LIST, fields={"limit": "5", "after": "a:x"}))
    assert reply.code == ResponseCode.INVALID_PARAMETER
    await connection.request(Command(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "a"}))
    assert (await page(limit="1", after="a:0"))[0] == [("ab", 0)]
    running.judge_by(lambda _identity, action, resource: action == "locate" or resource == "b/#")
    assert await page(limit="200") == (everything[8:], "")


async def test_the_status_has_positions_and_counts(running) -> None:
    reply = await running.connect().request(Command(RequestCode.CLUSTER_STATUS))
    status = msgspec.json.decode(reply.body)
    assert status["broker"] == "broker-a"
    assert status["confirm"] == running.store.confirm_position
    assert status["sessions"] == 0


async def test_messages_are_counted_while_there_are_few_topics(running, monkeypatch: pytest.MonkeyPatch) -> None:
    await running.connect().request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"b/1")))
    assert running.broker.topics.status() == {"topics": 2, "messages_stored": 2}
    monkeypatch.setattr(feature, "COUNTED_TOPICS_MAX", 1)
    assert running.broker.topics.status() == {"topics": 2}
