"""Lag of groups, traffic of topics and groups, rates."""

from __future__ import annotations

import json

import msgspec
import pytest

from broker.groups.traffic import DAY_MS
from broker.rocketmq import statistics
from broker.rocketmq.statistics import Rates
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image


async def ask(connection, code: int, language: str = "PYTHON", **fields: str) -> bytes:
    reply = await connection.request(Command(code, fields=fields, language=language))
    assert reply.code == 0, reply.remark
    return reply.body


async def commit(connection, group: str, topic: str, queue: int, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}
    assert (await connection.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields))).code == 0


async def send(connection, count: int) -> None:
    entries = [encode_mqtt_image(b"plant/%d" % (number % 2), b"x", 1, 0, b"c") for number in range(count)]
    reply = await connection.request(Command(RequestCode.APPEND_MANY, body=b"".join(entries)))
    assert reply.code == 0


async def queues_of(connection, group: str) -> dict[tuple[str, int], dict[str, int]]:
    table = msgspec.json.decode(await ask(connection, RequestCode.GET_CONSUME_STATS, consumerGroup=group))
    found = {}
    for key, numbers in table["offsetTable"].items():
        queue = msgspec.json.decode(key)
        found[queue["topic"], queue["queueId"]] = numbers
    return found


async def test_a_group_in_messages_and_times(running) -> None:
    connection = running.connect()
    await send(connection, 6)
    running.clock.advance_ms(1_500)
    sizes = {
        index: running.broker.tools.store.reading.bounds(queue)[1] for index, queue in enumerate(ids(running, "plant"))
    }
    full = max(sizes, key=lambda index: sizes[index])
    await commit(connection, "g", "plant", full, 1)
    await commit(connection, "g", "%LMQ%plant%2F1", 0, 3)
    found = await queues_of(connection, "g")
    parent, light = found["plant", full], found["%LMQ%plant%2F1", 0]
    assert (parent["brokerOffset"], parent["consumerOffset"], parent["minOffset"]) == (sizes[full], 1, 0)
    assert parent["waitingMs"] == 1_500
    assert parent["lastTimestamp"] > 0
    assert statistics.messages_behind(parent) == sizes[full] - 1
    assert (light["brokerOffset"], light["consumerOffset"], light["waitingMs"]) == (3, 3, 0)
    assert set(await queues_of(connection, "nobody")) == set()
    only = await ask(connection, RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic="plant")
    assert len(msgspec.json.decode(only)["offsetTable"]) == 1


async def test_all_groups_and_the_form_java_reads(running, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = running.connect()
    await send(connection, 4)
    await commit(connection, "a", "%LMQ%plant%2F0", 0, 0)
    await commit(connection, "b", "%LMQ%plant%2F0", 0, 1)
    body = msgspec.json.decode(await ask(connection, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false"))
    assert [list(each) for each in body["consumeStatsList"]] == [["a"], ["b"]]
    assert (body["totalDiff"], body["truncated"]) == (3, False)
    java = await ask(connection, RequestCode.GET_BROKER_CONSUME_STATS, language="JAVA", isOrder="false")
    assert b'[{"a":[{"offsetTable":{{"brokerName":' in java
    monkeypatch.setattr(statistics, "QUEUES_MAX", 1)
    body = msgspec.json.decode(await ask(connection, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false"))
    assert (len(body["consumeStatsList"]), body["truncated"]) == (1, True)


async def test_deleted_and_forbidden_topics_are_left_out(running, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = running.connect()
    await send(connection, 2)
    running.broker.topics.table.ensure("t", 1)
    await commit(connection, "g", "plant", 0, 0)
    await commit(connection, "g", "t", 0, 0)
    running.broker.topics.table.delete("t")
    assert set(await queues_of(connection, "g")) == {("plant", 0)}

    monkeypatch.setattr(running.broker.tools.authorizer, "policy", lambda _who, action, _what: action == "locate")
    assert await queues_of(connection, "g") == {}


def test_expired_messages_are_no_lag() -> None:
    assert statistics.messages_behind({"brokerOffset": 10, "consumerOffset": 2, "minOffset": 7}) == 3
    assert statistics.messages_behind({"brokerOffset": 10, "consumerOffset": 12, "minOffset": 0}) == 0


def ids(running, topic: str) -> list[int]:
    return list(running.broker.topics.table.queue_ids(topic))


PULL = {
    "consumerGroup": "g",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "subscription": "*",
}


async def ask_figures(connection, code: int, **fields: str) -> Command:
    return await connection.request(Command(code, fields=fields))


async def figures(connection, name: str, key: str) -> list[tuple[int, float]]:
    reply = await ask_figures(connection, RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    assert reply.code == 0, reply.remark
    body = json.loads(reply.body)
    return [(body[member]["sum"], body[member]["tps"]) for member in ("statsMinute", "statsHour", "statsDay")]


async def send_to_topic(connection, count: int) -> None:
    fields = {"b": "t", "e": "0", "d": "2"}
    for _ in range(count):
        assert (await connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"x"))).code == 0


async def test_what_a_topic_got_is_read_from_the_log(running) -> None:
    """Also what came before a restart of the broker, from any sender."""
    connection, clock = running.connect(), running.clock
    await send_to_topic(connection, 6)
    clock.advance_ms(120_000)
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"t/1", b"t/2", b"t/1")))
    wanted = [(3, 3 / 60), (9, 9 / 3_600), (9, 9 / 86_400)]
    assert await figures(connection, "TOPIC_PUT_NUMS", "t") == wanted
    await running.restart()
    connection = running.connect()
    assert await figures(connection, "TOPIC_PUT_NUMS", "t") == wanted
    stats = await ask_figures(connection, RequestCode.GET_TOPIC_STATS_INFO, topic="t")
    assert json.loads(stats.body)["topicPutTps"] == 0.05
    java = Command(RequestCode.GET_TOPIC_STATS_INFO, fields={"topic": "t"}, language="JAVA")
    assert (await connection.request(java)).body.endswith(b'},"topicPutTps":0.05}')
    clock.advance_ms(60_001)
    assert (await figures(connection, "TOPIC_PUT_NUMS", "t"))[0] == (0, 0.0)


async def test_what_a_group_pulled_is_counted(running) -> None:
    connection = running.connect()
    await send_to_topic(connection, 6)
    pulled = await ask_figures(connection, RequestCode.PULL_MESSAGE, topic="t", **PULL)
    assert pulled.code == 0
    assert await figures(connection, "GROUP_GET_NUMS", "t@g") == [(6, 0.1), (6, 6 / 3_600), (6, 6 / 86_400)]
    assert (await figures(connection, "GROUP_GET_SIZE", "t@g"))[0][0] == len(pulled.body)
    fields = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "6"}
    await ask_figures(connection, RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
    stats = await ask_figures(connection, RequestCode.GET_CONSUME_STATS, consumerGroup="g")
    assert json.loads(stats.body)["consumeTps"] == 0.1
    stats = json.loads((await ask_figures(connection, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")).body)
    assert stats["consumeStatsList"][0]["g"][0]["consumeTps"] == 0.1


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "nowhere"),
        ("TOPIC_PUT_SIZE", "t"),
        ("GROUP_GET_NUMS", "t@nobody"),
        ("GROUP_GET_NUMS", "t"),
        ("BROKER_PUT_NUMS", "DefaultCluster"),
    ],
)
async def test_what_is_not_measured_is_refused_by_name(running, name: str, key: str) -> None:
    connection = running.connect()
    await send_to_topic(connection, 1)
    reply = await ask_figures(connection, RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert (reply.remark or "").startswith(f"The stats <{name}> <{key}> not exist")
    assert "TOPIC_PUT_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE" in (reply.remark or "")


def test_each_span_has_its_own_rate() -> None:
    rates, count = Rates(), 0
    assert rates.per_second() == (0.0, 0.0, 0.0)
    for second in range(1_000):
        count += 100 if second >= 990 else 10
        rates.sample(second * 1_000, count)
    ten, minute, ten_minutes = rates.per_second()
    assert ten == 100
    assert minute == (10 * 100 + 50 * 10) / 60
    assert ten_minutes == (10 * 100 + 590 * 10) / 600


def test_frequent_and_rare_samples_give_the_same_rate() -> None:
    rates = Rates()
    for at_ms in range(0, 20_000, 50):
        rates.sample(at_ms, at_ms // 10)
    assert rates.per_second() == (100.0, 100.0, 100.0)
    rare = Rates()
    rare.sample(0, 0)
    rare.sample(30_000, 3_000)
    assert rare.per_second() == (0.0, 100.0, 100.0)


def test_a_day_begins_with_the_counter_as_it_was() -> None:
    rates = Rates()
    rates.sample(DAY_MS - 2_000, 5)
    rates.sample(DAY_MS + 1, 7)
    assert (rates.yesterday_morning, rates.today_morning) == (0, 7)
    rates.sample(2 * DAY_MS, 11)
    assert (rates.yesterday_morning, rates.today_morning) == (7, 11)
    rates.sample(5 * DAY_MS, 12)
    assert (rates.yesterday_morning, rates.today_morning) == (12, 12)


def test_a_clock_that_was_set_back_does_no_harm() -> None:
    rates = Rates()
    for at_ms, count in ((10_000, 0), (11_000, 10), (3_000, 20), (4_000, 30)):
        rates.sample(at_ms, count)
    assert rates.per_second()[0] == 10.0
