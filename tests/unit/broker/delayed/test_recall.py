"""Recall of waiting messages: by the handle of the answer, over restarts and retention, and what is refused."""

from __future__ import annotations

import pytest

from broker.delayed import recall as room
from broker.delayed.buckets import BUCKET_MS
from broker.store.state import state_kinds
from remoting.protocol.bodies.recall_handle import RecallHandle, decode_handle, encode_handle
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.names import light_queue_name, parent_topic
from remoting.protocol.records.properties import encode_properties
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, MQTT_TOPIC_KEY, RecordView

DELAY_MS = 60_000


def sending(number: int, delay_ms: int = DELAY_MS, topic: str = "orders") -> Command:
    """A message of a RocketMQ producer that waits."""
    properties = {b"UNIQ_KEY": b"%032d" % number, b"TIMER_DELAY_MS": b"%d" % delay_ms}
    fields = {
        "producerGroup": "g", "topic": topic, "queueId": "0", "defaultTopicQueueNums": "1", "bornTimestamp": "1",
        "properties": encode_properties(properties.items()).decode(),
    }  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE, fields=fields, body=b"%d" % number)


def recalling(handle: str, topic: str = "orders") -> Command:
    fields = {"producerGroup": "g", "topic": topic, "recallHandle": handle, "bname": "broker-a"}
    return Command(RequestCode.RECALL_MESSAGE, fields=fields)


def stored(bench, topic: str = "orders") -> list[bytes]:
    """Bodies in the first queue of the topic."""
    queue = bench.broker.topics.table.queue_ids(topic)[0]
    low, high = bench.store.reading.bounds(queue)
    return [bytes(RecordView(record).body) for record in bench.store.reading.read(queue, low, high, 10**7).records]


async def delivered(bench, after_ms: int) -> None:
    """Advance the clock and deliver everything due."""
    bench.clock.advance_ms(after_ms)
    while bench.broker.delayed.messages.due(bench.clock.now_ms()):
        await bench.settle()
    await bench.settle()


async def sent(bench, number: int, delay_ms: int = DELAY_MS) -> str:
    """The handle of a message that waits from now on."""
    reply = await bench.connect().request(sending(number, delay_ms))
    assert reply.code == 0, reply.remark
    return reply.fields["recallHandle"]


async def test_a_recalled_message_is_not_delivered_and_the_others_are(running) -> None:
    """The answer has the id that the producer knows."""
    handles = [await sent(running, number) for number in range(3)]
    handle = decode_handle(handles[1])
    assert (handle.topic, handle.broker, handle.unique_key) == ("orders", "broker-a", f"{1:032d}")
    assert handle.due_ms == running.clock.now_ms() + DELAY_MS
    reply = await running.connect().request(recalling(handles[1]))
    assert (reply.code, reply.fields["msgId"]) == (0, f"{1:032d}")
    messages = running.broker.delayed.messages
    assert (messages.waiting, messages.counts.recalled) == (2, 1)
    await delivered(running, DELAY_MS)
    assert stored(running) == [b"0", b"2"]
    assert (messages.waiting, messages.counts.delivered, messages.counts.undeliverable) == (0, 2, 0)
    assert running.store.state.count(state_kinds.DELAYED) == 1  # what was recalled is recorded until it is passed
    assert running.registry.values()["rocketmq_delayed_recalled_messages_total"] == 1


async def test_a_recall_survives_a_restart(running) -> None:
    handles = [await sent(running, number) for number in range(3)]
    assert (await running.connect().request(recalling(handles[0]))).code == 0
    await running.restart()
    assert running.broker.delayed.messages.waiting == 2
    assert (await running.connect().request(recalling(handles[2]))).code == 0
    await running.restart()
    await delivered(running, DELAY_MS)
    assert stored(running) == [b"1"]


async def test_a_second_recall_is_answered_like_the_first(running) -> None:
    """Until the time of the message has come."""
    handle = await sent(running, 7)
    for _ in range(2):
        assert (await running.connect().request(recalling(handle))).code == 0
    assert running.broker.delayed.messages.counts.recalled == 1
    await delivered(running, DELAY_MS)
    assert (await running.connect().request(recalling(handle))).code == ResponseCode.ILLEGAL_OPERATION


def by_key(key: str, due_ms: int, topic: str = "orders") -> Command:
    """A message that recalls another one, as RocketMQ's programs send it."""
    properties = {b"UNIQ_KEY": b"%032d" % 99, b"TIMER_DEL_UNIQKEY": key.encode(), b"TIMER_DELIVER_MS": b"%d" % due_ms}
    command = sending(99, topic=topic)
    command.fields["properties"] = encode_properties(properties.items()).decode()
    return command


@pytest.mark.parametrize("prefix", ["", "orders+"])
async def test_a_message_with_the_unique_key_of_another_recalls_it(running, prefix) -> None:
    for number in range(3):
        await sent(running, number)
    due_ms, key = running.clock.now_ms() + DELAY_MS, f"{1:032d}"
    connection = running.connect()
    for _ in range(2):  # a second one is answered like the first
        reply = await connection.request(by_key(prefix + key, due_ms))
        assert (reply.code, reply.fields["msgId"]) == (0, key), reply.remark
        assert {"queueId", "queueOffset"} < reply.fields.keys()
    for wrong in (by_key(key, due_ms + 1), by_key("other", due_ms), by_key(key, 1), by_key(key, due_ms, "others")):
        assert (await connection.request(wrong)).code == ResponseCode.ILLEGAL_OPERATION
    messages = running.broker.delayed.messages
    assert (messages.waiting, messages.counts.recalled) == (2, 1)
    await delivered(running, DELAY_MS)
    assert stored(running) == [b"0", b"2"]
    assert (await connection.request(by_key(f"{2:032d}", due_ms))).code == ResponseCode.ILLEGAL_OPERATION


async def test_what_does_not_wait_has_no_handle(running) -> None:
    """A message for now, a retry."""
    for command in (sending(1, 0), sending(2, topic="%RETRY%g")):
        reply = await running.connect().request(command)
        assert reply.code == 0
        assert "recallHandle" not in reply.fields


async def test_invalid_recalls_are_refused(running) -> None:
    """With RocketMQ's codes, counted, and the message is delivered."""
    handle = decode_handle(await sent(running, 1))
    await running.connect().request(sending(9, 0, topic="other"))

    async def refused(given: str, topic: str = "orders") -> tuple[int, str]:
        reply = await running.connect().request(recalling(given, topic))
        return reply.code, reply.remark

    illegal = ResponseCode.ILLEGAL_OPERATION
    assert await refused("nonsense") == (illegal, "recall handle is invalid")
    assert (await refused(encode_handle(handle), "unknown"))[0] == ResponseCode.TOPIC_NOT_EXIST
    assert await refused(encode_handle(handle), "other") == (illegal, "recall failed, topic not match")
    for changed, named in (
        ({"broker": "broker-b"}, "another broker"),
        ({"due_ms": running.clock.now_ms()}, "has come"),
        ({"due_ms": handle.due_ms + 1}, "no such message"),
        ({"due_ms": handle.due_ms + 5 * BUCKET_MS}, "no such message"),
        ({"unique_key": "other"}, "no such message"),
        ({"offset": 5}, "no such message"),
        ({"offset": None, "unique_key": "other"}, "no such message"),
    ):
        fields = {name: getattr(handle, name) for name in ("topic", "broker", "due_ms", "unique_key", "offset")}
        code, remark = await refused(encode_handle(RecallHandle(**(fields | changed))))
        assert code == illegal
        assert named in remark, changed
    assert running.registry.values()["rocketmq_delayed_recalls_refused_total"] == 10
    await delivered(running, DELAY_MS)
    assert stored(running) == [b"1"]


async def test_a_message_that_retention_copied_is_found(running, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its unique key; what was recalled before is not copied."""
    monkeypatch.setattr(room, "SEARCH_STEP", 3)
    handles = [await sent(running, number, DELAY_MS + number) for number in range(10)]
    messages = running.broker.delayed.messages
    assert (await running.connect().request(recalling(handles[4]))).code == 0

    def append(placed, changes):
        return running.store.append(placed, changes=changes).end_position

    target = running.store.end_position
    while not messages.keep_from(target, append):
        await running.settle()
    await running.settle()
    assert messages.counts.carried == 9
    assert running.store.state.count(state_kinds.DELAYED) == 1
    assert (await running.connect().request(recalling(handles[8]))).code == 0
    assert (await running.connect().request(recalling(handles[4]))).code == ResponseCode.ILLEGAL_OPERATION
    await running.restart()
    assert running.broker.delayed.messages.waiting == 8
    await delivered(running, DELAY_MS + 10)
    assert stored(running) == [b"%d" % number for number in (0, 1, 2, 3, 5, 6, 7, 9)]


def rescheduling(handle: str, topic: str = "orders", **fields: str) -> Command:
    return Command(RequestCode.RESCHEDULE_MESSAGE, fields={"topic": topic, "recallHandle": handle} | fields)


async def test_a_rescheduled_message_waits_for_its_new_time_alone(running) -> None:
    """Earlier, later, by a time or a delay, over a restart; the old handle is void, the new one recalls."""
    handles = [await sent(running, number) for number in range(4)]
    connection, now_ms = running.connect(), running.clock.now_ms()
    earlier = await connection.request(rescheduling(handles[0], delayMs="1000"))
    later = await connection.request(rescheduling(handles[1], deliverMs=str(now_ms + 2 * BUCKET_MS)))
    again = await connection.request(rescheduling(handles[2], delayMs="5000"))
    assert [reply.code for reply in (earlier, later, again)] == [0, 0, 0]
    assert earlier.fields["msgId"] == f"{0:032d}"
    assert decode_handle(earlier.fields["recallHandle"]).due_ms == now_ms + 1_000
    messages = running.broker.delayed.messages
    assert (messages.waiting, messages.counts.rescheduled) == (4, 3)
    for request in (recalling(handles[0]), rescheduling(handles[0], delayMs="7")):
        assert (await connection.request(request)).code == ResponseCode.ILLEGAL_OPERATION
    assert (await connection.request(recalling(again.fields["recallHandle"]))).code == 0
    await running.restart()
    assert running.broker.delayed.messages.waiting == 3
    await delivered(running, 1_000)
    assert stored(running) == [b"0"]
    await delivered(running, DELAY_MS)
    assert stored(running) == [b"0", b"3"]
    await delivered(running, 2 * BUCKET_MS)
    assert stored(running) == [b"0", b"3", b"1"]
    assert running.broker.delayed.messages.waiting == 0


async def test_a_time_that_has_come_delivers_at_once(running) -> None:
    handle = await sent(running, 5)
    reply = await running.connect().request(rescheduling(handle, delayMs="0"))
    assert (reply.code, reply.fields) == (0, {"msgId": f"{5:032d}"})
    assert stored(running) == [b"5"]
    await delivered(running, DELAY_MS)
    assert stored(running) == [b"5"]


async def test_an_invalid_time_changes_nothing(running) -> None:
    """Not a number, none at all, too far away."""
    handle = await sent(running, 5)
    for fields, code in (
        ({}, ResponseCode.INVALID_PARAMETER),
        ({"delayMs": "soon"}, ResponseCode.INVALID_PARAMETER),
        ({"delayMs": "9" * 14}, ResponseCode.MESSAGE_ILLEGAL),
    ):
        assert (await running.connect().request(rescheduling(handle, **fields))).code == code
    assert running.broker.delayed.messages.waiting == 1
    await delivered(running, DELAY_MS)
    assert stored(running) == [b"5"]


async def test_concurrent_searches_are_limited(running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles without a position cost the broker no more than that."""
    monkeypatch.setattr(room, "SEARCHES_MAX", 0)
    handle = decode_handle(await sent(running, 1))
    vague = encode_handle(RecallHandle(handle.topic, handle.broker, handle.due_ms, handle.unique_key))
    assert (await running.connect().request(recalling(vague))).code == ResponseCode.SYSTEM_BUSY
    monkeypatch.setattr(room, "SEARCHES_MAX", 1)
    assert (await running.connect().request(recalling(vague))).code == 0


async def test_the_mqtt_topic_of_a_message_needs_its_own_right(running) -> None:
    """An operator's handle may name an MQTT message, whose topic is not in it."""
    image = encode_image(
        flags=FLAG_MQTT | 1, queue_index=0xFFFF, born_ms=1, topic=parent_topic(b"plant/a"), body=b"x",
        properties=((MQTT_TOPIC_KEY, b"plant/a"), (CLIENT_ID_KEY, b"c"), (b"delay-ms", b"%d" % DELAY_MS)),
    )  # fmt: skip
    assert (await running.connect().request(Command(RequestCode.APPEND_MANY, body=image))).code == 0
    due_ms = running.clock.now_ms() + DELAY_MS
    handle = encode_handle(RecallHandle("plant", "broker-a", due_ms, offset=0))
    running.judge_by(lambda _identity, _action, resource: resource == "plant")
    assert (await running.connect().request(recalling(handle, "plant"))).code == ResponseCode.NO_PERMISSION
    running.judge_by(lambda _identity, _action, resource: resource in {"plant", "plant/a"})
    assert (await running.connect().request(recalling(handle, "plant"))).code == 0
    running.judge_by(lambda *_: True)
    await delivered(running, DELAY_MS)
    assert running.store.reading.bounds(running.store.queues.find(light_queue_name(b"plant/a"))) == (0, 0)


async def test_a_recall_of_what_is_not_confirmed_yet_is_to_be_repeated(running) -> None:
    """Its producer would take it for delivered."""
    handle = await sent(running, 1)
    await running.take_over()
    assert (await running.connect().request(recalling(handle))).code == ResponseCode.SYSTEM_BUSY
    running.confirm()
    assert (await running.connect().request(recalling(handle))).code == ResponseCode.SUCCESS
    await delivered(running, DELAY_MS)
    assert stored(running) == []


async def test_retention_passes_over_no_damage_that_it_does_not_take(running) -> None:
    """Another copy of the log may have the message, and a file can be put back."""
    await sent(running, 1)
    target, end = running.store.begin_position, running.store.end_position
    messages = running.broker.delayed.messages
    (bucket,) = messages.buckets
    running.damage(bucket.queue_id, 0)

    def append(placed, changes) -> int:
        return running.store.append(placed, changes=changes).end_position

    assert messages.keep_from(target, append)
    assert (bucket.floor, messages.counts.unreadable) == (0, 0)
    running.damage(bucket.queue_id, 0)  # the same bit again
    assert not messages.keep_from(end, append)
    await running.settle()
    await delivered(running, DELAY_MS)
    assert stored(running) == [b"1"]
