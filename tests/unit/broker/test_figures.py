"""What the metrics page shows of groups, sessions and retained messages, on a real store."""

from __future__ import annotations

from broker import figures
from broker.figures import Backlog, GroupLag
from remoting.native.contracts import RETAINED_VALUE
from remoting.protocol.bodies.session_body import (
    FilterRequest,
    SessionOpen,
    SessionOpened,
    SubscribeRequest,
    decode,
    encode,
)
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import FLAG_QOS_MASK

LAG = "rocketmq_consumer_lag_messages"


async def subscribed(connection, name: str, topic_filter: str) -> None:
    opened = await connection.request(
        Command(RequestCode.SESSION_OPEN, body=encode(SessionOpen(name, False, None, 60)))
    )
    epoch = decode(SessionOpened, opened.body).epoch
    body = encode(SubscribeRequest(name, epoch, True, [FilterRequest(topic_filter, 1)]))
    await connection.request(Command(RequestCode.SUBSCRIBE, body=body))


async def committed(connection, group: str, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": "orders", "queueId": "0", "commitOffset": str(offset)}
    reply = await connection.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields))
    assert reply.code == 0, reply.remark


async def sent(connection, count: int) -> None:
    for _ in range(count):
        fields = {"topic": "orders", "queueId": "0", "producerGroup": "p", "defaultTopic": "TBW102", "sysFlag": "0",
                  "defaultTopicQueueNums": "4", "bornTimestamp": "1", "flag": "0"}  # fmt: skip
        reply = await connection.request(Command(RequestCode.SEND_MESSAGE, fields=fields, body=b"x"))
        assert reply.code == 0, reply.remark


async def test_the_backlog_is_summed_up_over_all_sessions(running, monkeypatch) -> None:
    """Step by step, and the page shows the last whole sum."""
    monkeypatch.setattr(figures, "SESSIONS_A_ROUND", 2)
    connection = running.connect()
    for number in range(3):
        await subscribed(connection, f"client-{number}", "a/#")
    await connection.request(Command(RequestCode.APPEND_MANY, body=running.publish(b"a/1", b"a/2")))
    backlog = Backlog(running.store, running.broker.sessions.table)
    seen = []
    for _ in range(3):
        assert backlog.maintain(0) == {}
        seen.append(backlog.messages)
    assert seen == [0, 0, 6]
    values = running.registry.values()
    assert (values["rocketmq_mqtt_sessions_kept"], values["rocketmq_mqtt_sessions_offline"]) == (3, 0)


async def test_lag_is_what_a_group_has_not_consumed(running, monkeypatch) -> None:
    """By group and topic; groups without room are counted instead."""
    connection = running.connect()
    await sent(connection, 3)
    await committed(connection, "a", 1)
    await committed(connection, "b", 3)
    running.broker.groups.commits.flush()
    values = running.registry.values()
    assert (values[LAG + "{a,orders}"], values[LAG + "{b,orders}"]) == (2, 0)
    lag = GroupLag(running.store, running.broker.groups.offsets, running.broker.topics.queues)
    monkeypatch.setattr(figures, "QUEUES_MAX", 1)
    assert dict(lag.rows()) == {("a", "orders"): 2}
    assert lag.groups_left_out == 1


async def test_appends_and_flushes_have_their_times(running) -> None:
    """One value for each append, whatever its number of messages."""
    body = running.publish(b"a", b"b", flags=1 | RETAINED_VALUE)
    assert 1 & FLAG_QOS_MASK
    await running.connect().request(Command(RequestCode.APPEND_MANY, body=body))
    await running.settle()
    values = running.registry.values()
    assert values["rocketmq_append_seconds"] == values["rocketmq_confirm_seconds"] == 1
    assert values["rocketmq_flush_seconds"] >= 1
    assert values["rocketmq_mqtt_retained_messages"] == 2
