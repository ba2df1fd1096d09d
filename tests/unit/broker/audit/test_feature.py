"""Every administrative act is recorded once, with its outcome and without secrets, and answered behind its record."""

from __future__ import annotations

import pytest

from broker.audit import feature as module
from remoting.access.rights import ACTS, MANAGE, RIGHTS
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode, request_name
from remoting.protocol.records.record import FLAG_RETAIN
from remoting.server.acts import SOMETIMES, RefusedActs
from tests.unit.broker.operating.asking import asked, publish

NO_ACTS = frozenset(
    {
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, Code.GET_CONSUMER_CONNECTION_LIST, Code.GET_PRODUCER_CONNECTION_LIST,
        Code.QUERY_TOPIC_CONSUME_BY_WHO, Code.QUERY_TOPICS_BY_CONSUMER, Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
        Code.QUERY_CONSUME_TIME_SPAN, Code.QUERY_CORRECTION_OFFSET, Code.GET_ALL_CONSUMER_OFFSET,
        Code.GET_ALL_PRODUCER_INFO, Code.GET_CONSUMER_RUNNING_INFO, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        Code.GET_LITE_CLIENT_INFO, Code.GET_LITE_GROUP_INFO, Code.GET_ALL_TOPIC_CONFIG, Code.GET_TOPIC_STATS_INFO,
        Code.VIEW_BROKER_STATS_DATA, Code.COPY_MESSAGES, Code.COPIED_QUEUES, Code.CLAIM_RETURN,
        Code.TELL_FOLLOWER, Code.FOLLOWER,
        Code.GET_PARENT_TOPIC_INFO, Code.GET_LITE_TOPIC_INFO, Code.GET_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Code.GET_BROKER_LITE_INFO, Code.GET_NAMESRV_CONFIG,
        Code.GET_CONTROLLER_CONFIG, Code.AUTH_GET_USER, Code.AUTH_LIST_USER, Code.AUTH_GET_ACL, Code.AUTH_LIST_ACL,
    }
)  # fmt: skip
"""What needs the right to administer but changes nothing; messages of a migration are data."""


def test_what_changes_something_is_an_act() -> None:
    managing = {code for code, right in RIGHTS.items() if right.verb == MANAGE}
    assert managing == ACTS | NO_ACTS
    assert not SOMETIMES.keys() & managing


async def records(running, **fields: str) -> list[tuple[str, str, str]]:
    listed = await asked(running, Code.AUDIT_LIST, **fields)
    return [(record["act"], record["target"], record["outcome"]) for record in listed["records"]]


async def test_acts_are_recorded_with_who_what_and_outcome(running) -> None:
    await publish(running, b"a", flags=1 | FLAG_RETAIN)
    await asked(running, Code.RETAINED_CLEAR, topic="a", road="lightmq")
    await asked(running, Code.RETAINED_CLEAR, topic="a")
    (refused, done) = (await asked(running, Code.AUDIT_LIST))["records"]
    assert done == {
        "id": "0", "time_ms": running.clock.now_ms(), "who": "anonymous", "role": "", "address": "in-process",
        "act": "RETAINED_CLEAR", "target": "topic=a", "outcome": "done", "road": "lightmq",
    }  # fmt: skip
    assert (refused["outcome"], refused["road"]) == (
        f"refused: {ResponseCode.QUERY_NOT_FOUND} the topic 'a' has no retained message", "remoting-python",
    )  # fmt: skip


async def test_acts_that_are_answered_later_are_recorded_too(running) -> None:
    assert await asked(running, Code.DELETE_TOPIC_IN_BROKER, topic="none") is None
    assert (await asked(running, Code.SESSION_END, client="c"))[0] == ResponseCode.QUERY_NOT_FOUND
    assert [record[:2] for record in await records(running)] == [
        ("SESSION_END", "client=c"), ("DELETE_TOPIC_IN_BROKER", "topic=none"),
    ]  # fmt: skip


async def test_requests_that_change_nothing_leave_no_record(running) -> None:
    for code in (Code.CLUSTER_STATUS, Code.GET_ALL_TOPIC_CONFIG, Code.SESSION_LIST, Code.AUDIT_LIST):
        await asked(running, code)
    await asked(running, Code.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="none", queueId="0", commitOffset="1")
    assert await records(running) == []
    fields = {"consumerGroup": "g", "topic": "none", "queueId": "0", "commitOffset": "1", "road": "console"}
    await asked(running, Code.UPDATE_CONSUMER_OFFSET, **fields)
    assert [record[0] for record in await records(running)] == ["UPDATE_CONSUMER_OFFSET"]


async def test_no_secret_is_recorded(running) -> None:
    body = b'{"username":"anna","password":"hunter2","userType":"Normal"}'
    await asked(running, Code.AUTH_CREATE_USER, body, username="anna")
    await asked(running, Code.UPDATE_BROKER_CONFIG, b"flushDiskType=hunter2\nother = hunter2\n")
    listed = await records(running)
    assert [record[1] for record in listed] == ["names=flushDiskType,other", "username=anna"]
    assert "hunter2" not in str(listed[1])


async def test_pages_go_back_in_time(running) -> None:
    times = []
    for number in range(5):
        running.clock.advance_ms(1_000)
        times.append(running.clock.now_ms())
        await asked(running, Code.SESSION_END, client=str(number))
    first = await asked(running, Code.AUDIT_LIST, limit="2")
    assert [record["target"] for record in first["records"]] == ["client=4", "client=3"]
    assert [record[1] for record in await records(running, before=first["next"])] == [
        "client=2",
        "client=1",
        "client=0",
    ]
    part = await records(running, from_ms=str(times[1]), until_ms=str(times[2]))
    assert [record[1] for record in part] == ["client=2", "client=1"]


async def test_records_survive_a_restart_and_stay_hidden(running) -> None:
    await asked(running, Code.SESSION_END, client="c")
    await running.restart()
    assert [record[0] for record in await records(running)] == ["SESSION_END"]
    queue = running.store.queues.find(module.QUEUE)
    assert running.broker.topics.visible.hidden(queue)
    assert running.broker.topics.table.get("LIGHTMQ_AUDIT") is None


async def test_refused_acts_cannot_fill_the_log(running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.broker.audit, "_refused", RefusedActs(2))
    running.judge_by(lambda identity, action, resource: action == "monitor")
    for number in range(4):
        assert (await asked(running, Code.SESSION_END, client=str(number)))[0] == ResponseCode.NO_PERMISSION
    assert [record[1] for record in await records(running)] == ["client=1", "client=0"]
    assert running.registry.values()["rocketmq_audit_unrecorded_total{refused_too_often}"] == 2
    running.clock.advance_ms(60_000)
    await asked(running, Code.SESSION_END, client="later")
    assert (await records(running))[0][1] == "client=later"


async def test_a_full_disk_does_not_keep_an_act_from_its_answer(running, monkeypatch: pytest.MonkeyPatch) -> None:
    await publish(running, b"a", flags=1 | FLAG_RETAIN)

    def full(_record: object) -> int:
        raise module.StoreError("the disk is full")

    monkeypatch.setattr(running.broker.audit, "_append", full)
    assert await asked(running, Code.RETAINED_CLEAR, topic="a") == {"topic": "a", "cleared": True}
    assert running.registry.values()["rocketmq_audit_unrecorded_total{store}"] == 1


def test_every_act_has_a_name() -> None:
    assert not [code for code in ACTS | SOMETIMES.keys() if request_name(code).isdigit()]
