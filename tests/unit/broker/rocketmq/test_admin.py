"""Requests of RocketMQ's tools: topics, groups, configuration, statistics."""

from __future__ import annotations

import json

import msgspec

from broker.store.log_store import LogStore
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command


async def ask(connection, code: int, body: bytes = b"", language: str = "PYTHON", **fields: str):
    return await connection.request(Command(code, fields=fields, body=body, language=language))


async def test_topics(running) -> None:
    connection = running.connect()
    created = await ask(
        connection, RequestCode.UPDATE_AND_CREATE_TOPIC, topic="t", readQueueNums="2", writeQueueNums="2", perm="6"
    )
    assert created.code == 0
    config = await ask(connection, RequestCode.GET_TOPIC_CONFIG, topic="t")
    assert msgspec.json.decode(config.body)["writeQueueNums"] == 2
    table = msgspec.json.decode((await ask(connection, RequestCode.GET_ALL_TOPIC_CONFIG)).body)
    assert set(table["topicConfigTable"]) == {"t"}
    wrong = await ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, topic="t", readQueueNums="0")
    assert wrong.code == ResponseCode.INVALID_PARAMETER
    assert (await ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")).code == 0
    assert (await ask(connection, RequestCode.GET_TOPIC_CONFIG, topic="t")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_deleted_topic_takes_the_offsets_of_its_groups_with_it(running) -> None:
    connection = running.connect()
    place = {"consumerGroup": "g", "queueId": "0"}
    for topic in ("t", "kept"):
        running.broker.topics.table.ensure(topic, 1)
        done = await ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, topic=topic, commitOffset="3", **place)
        assert done.code == 0
    gathered = {**place, "topic": "t", "commitOffset": "4"}
    connection.oneway(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=gathered))
    assert (await ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")).code == 0
    assert (await ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")).code == 0, "it need not exist"
    assert running.broker.groups.offsets.of_group("g") == {("kept", 0): 3}


async def test_a_group_that_comes_while_a_topic_is_deleted_begins_anew(running, monkeypatch) -> None:
    """It commits its first offset after the look at all groups; no offset outlives the topic."""
    connection, groups = running.connect(), running.broker.groups
    groups.offsets.commit([("older", "t", 0, 9)])
    assert (await ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")).code == 0
    assert groups.offsets.of_group("older") == {}
    running.broker.topics.table.ensure("t", 1)
    looked = groups.offsets.by_group

    async def interrupted(topic: str | None = None):
        found = await looked(topic)
        if running.broker.topics.table.get("t") is not None:
            groups.commits.add("g", "t", 0, 3)
        return found

    monkeypatch.setattr(groups.offsets, "by_group", interrupted)
    assert (await ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")).code == 0
    assert groups.offsets.of_group("g") == {}


async def test_statistics_write_keys_as_the_asking_language_reads_them(running) -> None:
    connection = running.connect()
    running.broker.topics.table.ensure("t", 1)
    await connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields={"b": "t", "e": "0"}, body=b"m"))
    java = await ask(connection, RequestCode.GET_TOPIC_STATS_INFO, language="JAVA", topic="t")
    assert java.body.startswith(
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:{"minOffset":0,"max'
    )
    other = await ask(connection, RequestCode.GET_TOPIC_STATS_INFO, topic="t")
    (stats,) = msgspec.json.decode(other.body)["offsetTable"].values()
    assert stats["maxOffset"] == 1


async def test_groups_configuration_and_runtime(running) -> None:
    connection = running.connect()
    body = b'{"groupName":"g","retryMaxTimes":3}'
    assert (await ask(connection, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)).code == 0
    groups = await ask(connection, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert msgspec.json.decode(groups.body)["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 3
    bad = await ask(connection, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"retryMaxTimes":"many"}')
    assert bad.code == ResponseCode.INVALID_PARAMETER
    runtime = msgspec.json.decode((await ask(connection, RequestCode.GET_BROKER_RUNTIME_INFO)).body)
    table = runtime["table"]
    assert table["brokerActive"] == "true"
    assert [float(rate) for rate in table["getTotalTps"].split(" ")] == [0.0, 0.0, 0.0]
    assert table["runtime"].startswith("[ 0 days, 0 hours, ")
    state = msgspec.json.decode((await ask(connection, RequestCode.GET_BROKER_HA_STATUS)).body)
    assert (state["master"], state["haConnectionInfo"], state["inSyncSlaveNums"]) == (True, [], 0)


async def test_a_batch_topic_stays_one(running) -> None:
    connection = running.connect()
    made = {"topic": "t", "readQueueNums": "2", "writeQueueNums": "2", "attributes": "+queue.type=BatchCQ"}
    assert (await ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, **made)).code == 0
    more = {"topic": "t", "readQueueNums": "4", "writeQueueNums": "4"}
    assert (await ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, **more)).code == 0
    other = await ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, **more, attributes="+queue.type=SimpleCQ")
    assert other.code == ResponseCode.INVALID_PARAMETER
    assert "fixed" in other.remark
    await running.restart()
    connection = running.connect()
    config = msgspec.json.decode((await ask(connection, RequestCode.GET_TOPIC_CONFIG, topic="t")).body)
    assert (config["attributes"], config["writeQueueNums"]) == ({"queue.type": "BatchCQ"}, 4)
    listed = msgspec.json.decode((await ask(connection, RequestCode.TOPIC_LIST)).body)["topics"]
    assert [(item["topic"], item["type"]) for item in listed] == [("t", "BatchCQ")]
    assert running.broker.topics.table.require("t").takes_batches


async def test_a_topic_asked_for_to_be_written_to_is_created_by_use(running) -> None:
    connection = running.connect()
    assert (await ask(connection, RequestCode.GET_TOPIC_CONFIG, topic="n")).code == ResponseCode.TOPIC_NOT_EXIST
    for _ in range(2):
        made = await ask(connection, RequestCode.GET_TOPIC_CONFIG, topic="n", forWrite="true")
        assert (made.code, msgspec.json.decode(made.body)["writeQueueNums"]) == (0, 4)
    assert running.store.confirm_position >= running.broker.topics.table.position("n") > 0
    assert (await ask(connection, RequestCode.GET_TOPIC_CONFIG, topic="n")).code == 0
    bad = await ask(connection, RequestCode.GET_TOPIC_CONFIG, topic="a b/+", forWrite="true")
    assert bad.code != 0
    running.broker.publishing.placement.choice._auto_create = False
    none = await ask(connection, RequestCode.GET_TOPIC_CONFIG, topic="other", forWrite="true")
    assert none.code == ResponseCode.TOPIC_NOT_EXIST


async def test_rates_daily_counts_and_times_are_shown(running) -> None:
    connection, broker = running.connect(), running.broker
    fields = {"b": "t", "e": "0", "d": "16"}
    broker.maintain(running.clock.now_ms())
    for _ in range(10):
        reply = await connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"x"))
        assert reply.code == 0, reply.remark
        running.clock.advance_ms(1_000)
        broker.maintain(running.clock.now_ms())
    assert broker.topics.table.get("t").write_queue_count == 8
    reply = await connection.request(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
    table = json.loads(reply.body)["table"]
    assert table["putTps"].split()[0] == "1.0"
    assert table["msgPutTotalTodayNow"] == "10"
    for total in ("msgPutTotal", "msgGetTotal"):
        assert table[f"{total}TodayMorning"].isdigit()
        assert table[f"{total}YesterdayMorning"].isdigit()
    assert float(table["putMessageAverageSize"]) > 0
    assert 0 < float(table["commitLogDiskRatio"]) < 1
    reply = await connection.request(Command(RequestCode.GET_TOPIC_STATS_INFO, fields={"topic": "t"}))
    shown = {json.loads(queue)["queueId"]: numbers for queue, numbers in json.loads(reply.body)["offsetTable"].items()}
    assert running.clock.now_ms() - 2_000 <= shown[0]["lastUpdateTimestamp"] <= running.clock.now_ms()
    assert shown[1]["lastUpdateTimestamp"] == 0


async def test_the_topics_of_a_deleted_group_may_already_be_deleted(running) -> None:
    connection = running.connect()
    for name in ("%DLQ%g", "%RETRY%g"):
        assert (await ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)).code == 0


async def put_list(connection, code: int, **body: object) -> Command:
    return await connection.request(Command(code, body=json.dumps(body).encode()))


async def test_topics_of_a_list_are_created_all_or_none(running) -> None:
    connection, topics = running.connect(), running.broker.topics.table
    one = {
        "topicName": "one",
        "readQueueNums": 2,
        "writeQueueNums": 3,
        "perm": 6,
        "attributes": {"+message.type": "FIFO"},
    }
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    reply = await put_list(connection, code, topicConfigList=[one, {"topicName": "no good name!"}])
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert topics.get("one") is None
    assert (await put_list(connection, code, topicConfigList=[one, {"topicName": "two"}])).code == 0
    assert (topics.require("one").read_queue_count, topics.require("one").write_queue_count) == (2, 3)
    assert topics.require("one").attributes == {"message.type": "FIFO"}
    assert topics.require("two").read_queue_count == running.config.default_queue_count
    for wrong in ([], ["x"], {"topicName": "x"}):
        assert (await put_list(connection, code, topicConfigList=wrong)).code == ResponseCode.INVALID_PARAMETER


async def test_groups_of_a_list_are_created_all_or_none(running) -> None:
    connection, groups = running.connect(), running.broker.groups.groups
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    one = {"groupName": "one", "retryMaxTimes": 3}
    reply = await put_list(connection, code, groupConfigList=[one, {"groupName": "no good name!"}])
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert groups.get("one") is None
    assert (await put_list(connection, code, groupConfigList=[one, {"groupName": "two"}])).code == 0
    assert [groups.get(name).retry_max_times for name in ("one", "two")] == [3, 16]
    assert (await put_list(connection, code, groupConfigList=[])).code == ResponseCode.INVALID_PARAMETER


async def test_names_that_belong_to_rocketmq_are_refused(running) -> None:
    connection = running.connect()
    for code in (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER):
        for name in ("SELF_TEST_TOPIC", "TBW102", "", " "):
            assert (await ask(connection, code, topic=name)).code == ResponseCode.INVALID_PARAMETER, name
    assert running.broker.topics.table.get("SELF_TEST_TOPIC") is None


async def test_a_topic_that_does_not_exist_is_deleted(running) -> None:
    """mqadmin deletes a topic at every master of the cluster; not all of them have it."""
    connection = running.connect()
    assert (await ask(connection, RequestCode.DELETE_TOPIC_IN_BROKER, topic="unknown")).code == 0


async def test_a_cleaning_request_is_a_round_of_upkeep(running, monkeypatch) -> None:
    connection, rounds, maintain = running.connect(), [], LogStore.maintain

    def counted(store: LogStore, now_ms: int) -> bool:
        rounds.append(now_ms)
        maintain(store, now_ms)
        return len(rounds) % 2 == 1

    monkeypatch.setattr(LogStore, "maintain", counted)
    for code in (
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
    ):
        reply = await ask(connection, code)
        assert (reply.code, reply.remark) == (0, "0 bytes of log were over and are deleted")
    assert rounds == [running.clock.now_ms()] * 6
