"""One message is followed from its arrival to its readers and to what it caused."""

from __future__ import annotations

import json
from typing import Any

from broker.operating import trace as module
from broker.operating.trace import mark_of
from remoting.protocol.bodies.operating_body import SparkReport, encode
from remoting.protocol.bodies.session_body import (
    FilterRequest,
    SessionOpen,
    SessionOpened,
    SubscribeRequest,
    encode_offsets,
)
from remoting.protocol.bodies.session_body import decode as decode_session
from remoting.protocol.bodies.session_body import encode as encode_session
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_image, encode_mqtt_image
from tests.unit.broker.lite import client as lite
from tests.unit.broker.operating.asking import asked, asked_raw, publish
from tests.unit.broker.pop.client import GROUP, INVISIBLE_MS, TOPIC, ack, expire, pop
from tests.unit.broker.pop.client import send as send_plain

TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CHILD = b"00-4bf92f3577b34da6a3ce929d0e0e4736-53995c3f42cd8ad8-01"


async def send(running, topic: bytes, **properties: bytes) -> None:
    pairs = [(key.encode(), value) for key, value in properties.items()]
    image = encode_mqtt_image(topic, b"x", 1, running.clock.now_ms(), b"device-7", properties=pairs)
    assert await asked_raw(running, Code.APPEND_MANY, image) == 0


async def trace(running, **fields: str) -> Any:
    return await asked(running, Code.TRACE_MESSAGE, **fields)


def said(found: Any, where: str) -> list[tuple[str, str]]:
    return [(step["what"], step["detail"]) for step in found["steps"] if step["where"] == where]


async def test_arrival_log_and_queues(running) -> None:
    await send(running, b"plant/7", traceparent=TRACE)
    found = await trace(running, topic="plant/7", offset="0")
    message = found["message"]
    assert (message["topic"], message["offset"], message["bytes"]) == ("plant/7", 0, 1)
    assert message["properties"]["traceparent"] == TRACE.decode()
    assert said(found, "device") == [("published", "client device-7: plant/7")]
    assert said(found, "log")[0][0] == "stored"
    assert [detail for _what, detail in said(found, "queue")][1] == "plant/7 at 0"
    assert await trace(running, id=message["id"]) == found
    assert (found["complete"], found["searched_until"]) == (True, running.store.confirm_position)


async def test_sessions_that_have_it_and_those_that_wait(running) -> None:
    connection = running.connect()
    queues = {}
    for name in ("far", "near"):
        opened = await connection.request(
            Command(Code.SESSION_OPEN, body=encode_session(SessionOpen(name, False, None, 60)))
        )
        epoch = decode_session(SessionOpened, opened.body).epoch
        wanted = SubscribeRequest(name, epoch, True, [FilterRequest("plant/+", 1)])
        await connection.request(Command(Code.SUBSCRIBE, body=encode_session(wanted)))
        queues[name] = running.broker.sessions.table.get(name).subscriptions["plant/+"].queue_id
    await publish(running, b"plant/7")
    await connection.request(Command(Code.APPEND_OFFSETS, body=encode_offsets([(b"far", queues["far"], 1)])))
    found = await trace(running, topic="plant/7", offset="0")
    assert said(found, "session") == [
        ("passed", "far (connected): plant/+ at 1"), ("waits", "near (connected): plant/+ at 0"),
    ]  # fmt: skip
    assert ("placed", "plant/+ at 0") in said(found, "queue")


async def test_more_sessions_than_are_shown_are_counted(running, monkeypatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_MAX", 1)
    connection = running.connect()
    for name in "abc":
        opened = await connection.request(
            Command(Code.SESSION_OPEN, body=encode_session(SessionOpen(name, False, None, 60)))
        )
        epoch = decode_session(SessionOpened, opened.body).epoch
        wanted = SubscribeRequest(name, epoch, True, [FilterRequest("t", 1)])
        await connection.request(Command(Code.SUBSCRIBE, body=encode_session(wanted)))
    await publish(running, b"t")
    found = await trace(running, topic="t", offset="0")
    assert said(found, "session")[1:] == [("others", "2 more sessions, 0 of which have passed it")]


async def test_groups_and_spark_queries(running) -> None:
    image = encode_image(flags=0, born_ms=5, topic=b"orders", body=b"b", queue_index=0)
    assert await asked_raw(running, Code.APPEND_MANY, image) == 0
    await asked(
        running, Code.UPDATE_CONSUMER_OFFSET, consumerGroup="billing", topic="orders", queueId="0", commitOffset="1"
    )
    broker = running.config.broker_name
    report = SparkReport("q", "r", "alarms", "running", batch=3, places=[("orders", broker, 0, 0), ("x", broker, 0, 9)])
    await asked(running, Code.SPARK_REPORT, encode(report))
    found = await trace(running, topic="orders", queue="0", offset="0")
    assert said(found, "producer") == [("published", "a producer: orders")]
    assert said(found, "group") == [("passed", "billing at 1")]
    assert said(found, "spark") == [("waits", "alarms: batch 3 read up to 0")]


async def test_commands_and_answers_that_it_caused(running) -> None:
    await send(running, b"plant/7", traceparent=TRACE, mqttCorrelationData=b"bm8x")
    await send(running, b"other", traceparent=b"00-00000000000000000000000000000001-53995c3f42cd8ad8-01")
    await send(running, b"cmd/7", traceparent=CHILD)
    await send(running, b"answer/7", mqttCorrelationData=b"bm8x")
    position = (await trace(running, topic="plant/7", offset="0"))["message"]["position"]
    await send(running, b"again", ORIGIN_MESSAGE_ID=b"%d" % position)
    found = await trace(running, topic="plant/7", offset="0")
    caused = [(what, detail.partition(",")[0]) for what, detail in said(found, "log")[1:]]
    assert caused == [("caused by it", "cmd/7"), ("answer", "answer/7"), ("sent again", "again")]


async def test_a_search_that_does_not_reach_the_end_says_so(running, monkeypatch) -> None:
    monkeypatch.setattr(module, "SEARCHED_MAX", 2)
    monkeypatch.setattr(module, "STEP", 1)
    for topic in (b"a", b"b", b"c", b"d"):
        await send(running, topic, traceparent=TRACE)
    found = await trace(running, topic="a", offset="0")
    assert found["complete"] is False
    assert len(said(found, "log")) < 4


async def test_the_search_goes_on_in_the_next_file_of_the_log(running) -> None:
    """The files have 8 MiB each."""
    await send(running, b"a", traceparent=TRACE)
    for _ in range(10):
        await publish(running, b"filler", body=bytes(1024 * 1024))
    await send(running, b"b", traceparent=CHILD)
    found = await trace(running, topic="a", offset="0")
    assert (found["complete"], said(found, "log")[1][1].partition(",")[0]) == (True, "b")


async def test_refusals(running) -> None:
    await publish(running, b"plant/7")
    nothing = ResponseCode.QUERY_NOT_FOUND
    for fields in ({"topic": "plant/7", "offset": "1"}, {"topic": "x", "offset": "0"}, {"id": "0"}, {"id": "12345678"}):
        assert (await trace(running, **fields))[0] == nothing, fields
    assert (await trace(running, id="no-such-id"))[0] == ResponseCode.INVALID_PARAMETER
    assert (await trace(running, id="no-such-id", topic="plant"))[0] == nothing
    assert (await trace(running))[0] == ResponseCode.INVALID_PARAMETER
    running.judge_by(lambda identity, action, resource: False)
    assert (await trace(running, topic="plant/7", offset="0"))[0] == ResponseCode.NO_PERMISSION


def test_marks_compare_trace_ids_and_correlation_data() -> None:
    assert mark_of(b"traceparent", TRACE) == mark_of(b"traceparent", CHILD)
    assert mark_of(b"traceparent", b"odd") == b"traceparent=odd"
    assert mark_of(b"CORRELATION_ID", b"1") == mark_of(b"mqttCorrelationData", b"1")


async def test_deliveries_by_pop_and_what_becomes_of_them(running) -> None:
    connection = running.connect()
    await send_plain(connection, b"1", b"2", queue=0)
    first, _second = await pop(connection)
    given_ms = running.clock.now_ms()
    place = {"topic": TOPIC, "queue": "0", "offset": str(first.stored.queue_offset)}
    (step,) = [step for step in (await trace(running, **place))["steps"] if step["where"] == "group"]
    assert step == {
        "time_ms": given_ms, "where": "group", "what": "in flight", "detail": f"{GROUP}: given, not acknowledged",
        "until_ms": given_ms + INVISIBLE_MS,
    }  # fmt: skip
    await expire(running)
    found = await trace(running, **place)
    assert said(found, "group") == [("passed", f"{GROUP} at 2"), ("waits", f"{GROUP} at 0")]
    ((what, detail),) = said(found, "retry")
    assert what == "redelivered"
    assert detail.startswith(f"{GROUP}, number 1: %RETRY%{GROUP}+{TOPIC}, position ")
    (again, _other) = await pop(connection)
    assert [what for what, _detail in said(await trace(running, **place), "group")] == ["passed", "in flight"]
    assert await ack(connection, again) == ResponseCode.SUCCESS
    assert [what for what, _detail in said(await trace(running, **place), "group")] == ["passed", "passed"]


async def test_a_message_that_a_group_gave_up(running) -> None:
    connection = running.connect()
    await send_plain(connection, b"1", queue=0)
    group = {"groupName": GROUP, "retryMaxTimes": 1}
    update = Command(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(group).encode())
    assert (await connection.request(update)).code == ResponseCode.SUCCESS
    for _ in range(2):
        assert len(await pop(connection)) == 1
        await expire(running)
    found = await trace(running, topic=TOPIC, queue="0", offset="0")
    ((what, detail),) = said(found, "dead letter")
    assert (what, detail.partition(":")[0]) == ("given up", f"{GROUP}, after 2 deliveries")


async def test_the_attempt_that_has_a_message_in_order_is_named(running) -> None:
    connection = running.connect()
    await send_plain(connection, b"1", queue=0)
    await pop(connection, order="true", attemptId="client-7#1")
    found = await trace(running, topic=TOPIC, queue="0", offset="0")
    assert said(found, "group") == [("in flight", f"{GROUP}, attempt client-7#1: given, not acknowledged")]


async def test_groups_of_a_lite_topic(running) -> None:
    connection = running.connect()
    await lite.make_parent(connection)
    for group in ("workers", "auditors"):
        await lite.make_group(connection, group)
    await lite.send(connection, "job-1", b"first", b"second")
    await lite.subscribe(connection, "job-1")
    taken, _second = await lite.pop(connection)
    found = await trace(running, topic="agents/job-1", offset="0")
    assert said(found, "group") == [("in flight", "workers: given, not acknowledged"), ("waits", "auditors at 0")]
    given = next(step for step in found["steps"] if step["what"] == "in flight")
    assert given["until_ms"] - given["time_ms"] == lite.INVISIBLE_MS
    assert await lite.ack(connection, taken) == 0
    found = await trace(running, topic="agents/job-1", offset="0")
    assert said(found, "group") == [("passed", "workers at 2"), ("waits", "auditors at 0")]
    found = await trace(running, topic="agents/job-1", offset="1")
    assert said(found, "group")[0][0] == "in flight"
