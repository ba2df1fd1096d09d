"""Requests of producers, in all forms."""

from __future__ import annotations

import asyncio
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.rocketmq.send import born_host_of, check_properties, count_batch, parse_send, stored_image
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_image
from remoting.protocol.records.rocketmq_form import SentFields
from remoting.protocol.records.stored_message import iter_stored
from tests.unit.broker.delayed.test_recall import delivered


def test_both_namings_are_equivalent() -> None:
    long = {"topic": "t", "producerGroup": "p", "queueId": "2", "properties": "a\x01b\x02", "batch": "true"}
    short = {"b": "t", "a": "p", "e": "2", "i": "a\x01b\x02", "m": "1"}
    assert parse_send(long, short=False) == parse_send(short, short=True)
    with pytest.raises(Refused, match="topic"):
        parse_send({}, short=True)


def test_properties_without_a_value_are_left_out() -> None:
    request = parse_send({"topic": "t", "properties": "a\x01b\x02broken\x02c\x01\x02"}, short=False)
    assert request.properties == {b"a": b"b", b"c": b""}


@pytest.mark.parametrize("properties", [{b"__rmq.born": b""}, {b"k": b"v" * 32_765}])
def test_properties_that_cannot_be_shown_again_are_refused(properties) -> None:
    check_properties({b"k": b"v" * 32_764})
    with pytest.raises(Refused):
        check_properties(properties)


def test_a_record_has_room_for_so_many_properties() -> None:
    with pytest.raises(Refused, match="65535"):
        stored_image(SentFields(b"t", 0, 0, 0, born_host_of("local")), {b"k": b"v" * 65_535}, memoryview(b""))


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.2:1337", b"0a00000200000539"), ("local", b"7f00000100000000"), ("[::1]:9", b"7f00000100000009")],
)
def test_the_born_host_is_an_ipv4_address(address: str, host: bytes) -> None:
    assert born_host_of(address) == host


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.data())
def test_a_batch_is_read_whole_and_a_cut_one_is_refused(bodies, data) -> None:
    blob = b"".join(
        struct.pack(">iiiii", 22 + len(body), 0, 0, 3, len(body)) + body + struct.pack(">h", 0) for body in bodies
    )
    assert count_batch(blob) == len(bodies)
    cut = data.draw(st.integers(0, len(blob) - 1))
    whole = {0} | {sum(22 + len(body) for body in bodies[:count]) for count in range(1, len(bodies))}
    if cut not in whole - {0}:
        with pytest.raises(Refused):
            count_batch(blob[:cut])


LONG = {"topic": "b", "producerGroup": "a", "queueId": "e", "sysFlag": "f", "bornTimestamp": "g", "flag": "h",
        "properties": "i", "reconsumeTimes": "j", "defaultTopicQueueNums": "d", "batch": "m"}  # fmt: skip


def sending(body: bytes = b"hello", *, code: int = RequestCode.SEND_MESSAGE_V2, **fields: str) -> Command:
    named = {"topic": "orders", "producerGroup": "p", "queueId": "1", "bornTimestamp": "5", **fields}
    if code != RequestCode.SEND_MESSAGE:
        named = {LONG[name]: value for name, value in named.items()}
    return Command(code, fields=named, body=body)


async def pull(connection, topic: str = "orders", queue: int = 1, offset: int = 0):
    fields = {"consumerGroup": "g", "topic": topic, "queueId": str(queue), "queueOffset": str(offset), "sysFlag": "4",
              "maxMsgNums": "32", "subscription": "*"}  # fmt: skip
    reply = await connection.request(Command(RequestCode.PULL_MESSAGE, fields=fields))
    return list(iter_stored(reply.body)) if reply.code == 0 else []


async def test_both_forms_of_fields_store_the_message_as_sent(running) -> None:
    connection = running.connect()
    properties = "KEYS\x01k1 k2\x02TAGS\x01red\x02own\x01value\x02"
    for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        reply = await connection.request(
            sending(code=code, properties=properties, flag="7", reconsumeTimes="2", sysFlag="1")
        )
        assert reply.code == 0, reply.remark
        assert reply.fields["queueId"] == "1"
        assert len(reply.fields["msgId"]) == 32
    messages = await pull(connection)
    assert [message.queue_offset for message in messages] == [0, 1]
    for message in messages:
        assert (message.topic, message.body, message.flag, message.sys_flag) == (b"orders", b"hello", 7, 1)
        assert (message.tags, message.keys, message.reconsume_times) == (b"red", [b"k1", b"k2"], 2)
        assert dict(message.properties)[b"own"] == b"value"
        assert len(dict(message.properties)[b"UNIQ_KEY"]) == 32
        assert not any(key.startswith(b"__rmq.") for key, _value in message.properties)
    viewed = await connection.request(
        Command(RequestCode.VIEW_MESSAGE_BY_ID, fields={"offset": str(int(reply.fields["msgId"][16:], 16))})
    )
    assert next(iter_stored(viewed.body)).queue_offset == 1


def item(body: bytes, properties: bytes = b"") -> bytes:
    """One message of a batch."""
    head = struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 0, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


async def test_a_batch_is_stored_message_by_message_whatever_form_its_flag_has(running) -> None:
    connection = running.connect()
    blob = item(b"1", b"TAGS\x01a\x02") + item(b"2") + item(b"3")
    for command in (sending(blob, code=RequestCode.SEND_BATCH_MESSAGE), sending(blob, batch="1")):
        reply = await connection.request(command)
        assert reply.code == 0, reply.remark
        assert len(reply.fields["msgId"].split(",")) == 3
    assert [message.body for message in await pull(connection)] == [b"1", b"2", b"3"] * 2
    broken = await connection.request(sending(blob[:-1], code=RequestCode.SEND_BATCH_MESSAGE))
    assert broken.code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_batch_that_was_compressed_as_a_whole_is_stored_plain(running) -> None:
    """The C++ client does so above 4 KiB; what cannot be decompressed, or grows too large, is refused."""
    items = [struct.pack(">iiiii", 24, 0, 0, 0, 2) + b"%02d" % number + struct.pack(">h", 0) for number in range(30)]
    code, packed = RequestCode.SEND_BATCH_MESSAGE, zlib.compress(b"".join(items))
    connection = running.connect()
    reply = await connection.request(sending(packed, code=code, sysFlag="1"))
    assert reply.code == 0, reply.remark
    stored = await pull(connection)
    assert [message.body for message in stored] == [b"%02d" % number for number in range(30)]
    assert {message.sys_flag for message in stored} == {0}
    bomb = zlib.compress(bytes(running.config.limits.message_size_bytes_max + 1))
    for body in (packed[:-1], packed[:5] + b"?" + packed[6:], bomb):
        assert (await connection.request(sending(body, code=code, sysFlag="1"))).code == ResponseCode.MESSAGE_ILLEGAL


async def test_creation_queue_range_transactions_and_delays(running) -> None:
    connection = running.connect()
    assert (await connection.request(sending(topic="small", defaultTopicQueueNums="2"))).code == 0
    assert running.broker.topics.table.get("small").write_queue_count == 2
    assert (await connection.request(sending(topic="small", queueId="2"))).code == ResponseCode.INVALID_PARAMETER
    assert (await connection.request(sending(topic="no/slash"))).code == ResponseCode.INVALID_PARAMETER
    assert (await connection.request(sending(sysFlag="4"))).code == ResponseCode.MESSAGE_ILLEGAL
    delayed = await connection.request(sending(properties="DELAY\x013\x02"))
    assert (delayed.code, delayed.remark) == (0, None)
    assert running.broker.delayed.messages.waiting == 1


async def test_a_message_that_could_not_be_consumed_is_retried_and_ends_as_a_dead_letter(running) -> None:
    connection = running.connect()
    reply = await connection.request(sending(properties="TAGS\x01red\x02"))
    position = int(reply.fields["msgId"][16:], 16)
    fields = {"offset": str(position), "group": "g", "delayLevel": "0", "originMsgId": "X"}
    assert (await connection.request(Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields=fields))).code == 0
    await delivered(running, 9_000)
    assert await pull(connection, "%RETRY%g", 0) == []
    await delivered(running, 1_000)
    (message,) = await pull(connection, "%RETRY%g", 0)
    assert (message.body, message.tags, message.reconsume_times) == (b"hello", b"red", 1)
    properties = dict(message.properties)
    assert (properties[b"RETRY_TOPIC"], properties[b"ORIGIN_MESSAGE_ID"]) == (b"orders", b"X")
    fields["maxReconsumeTimes"] = "0"
    assert (await connection.request(Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields=fields))).code == 0
    assert len(await pull(connection, "%DLQ%g", 0)) == 1
    again = sending(topic="%RETRY%g", reconsumeTimes="17", queueId="0")
    assert (await connection.request(again)).code == 0
    assert len(await pull(connection, "%DLQ%g", 0)) == 2
    again = sending(topic="%RETRY%g+orders", reconsumeTimes="17", queueId="0")
    assert (await connection.request(again)).code == 0
    assert len(await pull(connection, "%DLQ%g", 0)) == 3, "of POP, likewise"


async def test_a_dead_letter_names_the_message_it_was(running) -> None:
    """Handed back, or sent to the retry topic once too often by a consumer in order."""
    connection = running.connect()
    unique = "0A" * 16
    sent = await connection.request(sending(properties=f"UNIQ_KEY\x01{unique}\x02DLQ_ORIGIN_TOPIC\x01forged\x02"))
    fields = {"offset": str(int(sent.fields["msgId"][16:], 16)), "group": "g", "delayLevel": "-1", "originMsgId": "X"}
    assert (await connection.request(Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields=fields))).code == 0
    text = f"RETRY_TOPIC\x01orders\x02UNIQ_KEY\x01{unique}"
    again = sending(topic="%RETRY%g", reconsumeTimes="17", queueId="0", properties=text)
    assert (await connection.request(again)).code == 0
    letters = await pull(connection, "%DLQ%g", 0)
    assert len(letters) == 2
    for letter in letters:
        shown = dict(letter.properties)
        assert (shown[b"DLQ_ORIGIN_TOPIC"], shown[b"DLQ_ORIGIN_MESSAGE_ID"]) == (b"orders", unique.encode())


async def test_a_retry_waits_as_long_as_its_consumer_or_the_number_of_retries_says(running) -> None:
    """Whatever time the message itself waited for."""
    connection = running.connect()
    await connection.request(sending(properties="TIMER_DELAY_MS\x01500\x02"))
    await delivered(running, 1_000)
    (message,) = await pull(connection, "orders", 1)
    back = {"offset": str(message.position), "group": "g", "delayLevel": "1"}
    for times, (level, wait_ms) in enumerate([("1", 1_000), ("0", 30_000), ("18", 7_200_000)], start=1):
        sent_back = Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields=back | {"delayLevel": level})
        assert (await connection.request(sent_back)).code == 0
        await delivered(running, wait_ms - 1)
        assert len(await pull(connection, "%RETRY%g", 0)) == times - 1
        await delivered(running, 1)
        message = (await pull(connection, "%RETRY%g", 0))[-1]
        assert message.reconsume_times == times
        back["offset"] = str(message.position)


async def test_a_dead_letter_does_not_wait(running) -> None:
    """A consumer in order sends it with a delay level to the retry topic, once too often."""
    connection = running.connect()
    text = "RETRY_TOPIC\x01orders\x02DELAY\x0119\x02TIMER_DELAY_MS\x015000\x02k\x01v\x02"
    assert (await connection.request(sending(topic="%RETRY%g", reconsumeTimes="17", properties=text))).code == 0
    (letter,) = await pull(connection, "%DLQ%g", 0)
    assert {key: value for key, value in letter.properties if key in (b"k", b"DELAY", b"DLQ_ORIGIN_TOPIC")} == {
        b"k": b"v", b"DLQ_ORIGIN_TOPIC": b"orders",
    }  # fmt: skip


async def test_what_is_handed_back_is_not_given_to_its_light_queues_again(running) -> None:
    connection = running.connect()
    sent = await connection.request(sending(properties="INNER_MULTI_DISPATCH\x01%LMQ%plant%2F7\x02"))
    fields = {"offset": str(int(sent.fields["msgId"][16:], 16)), "group": "g", "delayLevel": "0"}
    assert (await connection.request(Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields=fields))).code == 0
    await delivered(running, 10_000)
    assert len(await pull(connection, "%RETRY%g", 0)) == len(await pull(connection, "%LMQ%plant%2F7", 0)) == 1


@pytest.mark.parametrize(
    ("topic", "code"),
    [("SCHEDULE_TOPIC_XXXX", 16), ("TRANS_CHECK_MAX_TIME_TOPIC", 16), ("rmq_sys_wheel_timer", 16),
     ("rmq_sys_REVIVE_LOG_DefaultCluster", 16), ("%LMQ%plant", 29), ("%LMQ%plant%2F7", 29),
     ("rmq_sys_TRACE_DATA_cn-x", 0), ("RMQ_SYS_TRACE_TOPIC", 0)],
)  # fmt: skip
async def test_topics_of_servers_and_light_queues_take_no_messages(running, topic: str, code: int) -> None:
    """Of producers and of rows; a topic that has the name of a light queue would be read as that queue."""
    connection = running.connect()
    assert (await connection.request(sending(topic=topic))).code == code
    image = encode_image(flags=0, queue_index=0xFFFF, born_ms=1, topic=topic.encode(), body=b"x")
    assert (await connection.request(Command(RequestCode.APPEND_MANY, body=image))).code == code
    if code:
        assert running.broker.topics.table.get(topic) is None


MQTT, LITE = "originMqttTopic\x01{}\x02", "__LITE_TOPIC\x01{}\x02"


@pytest.mark.parametrize(
    ("topic", "properties", "code"),
    [
        ("plant", MQTT.format("plant/a/y"), 0),  # the right to the MQTT topic suffices, and is needed
        ("plant", MQTT.format("plant/a/y") + "delay-ms\x01500\x02", 0),
        ("plant", "", 16),
        ("plant", MQTT.format("plant/b/y"), 16),
        ("plant", MQTT.format("plant/b/y") + "delay-ms\x01500\x02", 16),
        ("plant", MQTT.format("plant/a/y") + MQTT.format("plant/b/y"), 16),
        ("plant", LITE.format("b/y"), 16),
        ("other", MQTT.format("plant/a/y"), 16),
    ],
)
async def test_a_message_needs_the_right_to_the_mqtt_topic_it_becomes_visible_at(
    running, topic: str, properties: str, code: int
) -> None:
    running.judge_by(lambda _identity, action, resource: action == "publish" and resource == "plant/a/y")
    assert (await running.connect().request(sending(topic=topic, properties=properties))).code == code
    if code:
        assert len(running.broker.topics.table) == 0, "nor has it any other effect"


async def test_rows_need_the_right_to_the_light_queues_they_name(running) -> None:
    running.judge_by(lambda _identity, _action, resource: resource in {"orders", "plant/7"})
    for name, code in ((b"%LMQ%plant%2F7", 0), (b"%LMQ%plant%2F8", 16)):
        image = encode_image(
            flags=0, queue_index=0xFFFF, born_ms=1, topic=b"orders", body=b"x",
            properties=[(b"INNER_MULTI_DISPATCH", name)],
        )  # fmt: skip
        assert (await running.connect().request(Command(RequestCode.APPEND_MANY, body=image))).code == code


async def test_what_could_not_be_read_again_is_not_handed_back(running) -> None:
    connection = running.connect()
    sent = await connection.request(sending())
    fields = {"offset": str(int(sent.fields["msgId"][16:], 16)), "group": "g", "delayLevel": "0"}
    back = Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields=fields)
    running.judge_by(lambda _identity, _action, resource: resource != "%RETRY%g/#")
    assert (await connection.request(back)).code == ResponseCode.NO_PERMISSION
    assert running.broker.topics.table.get("%RETRY%g") is None


async def test_a_message_of_others_is_handed_back_and_viewed_as_one_that_is_not_there(running) -> None:
    """One answer for hidden, absent and foreign: it depends on what the request names alone."""
    connection = running.connect()
    half = sending(sysFlag="4", properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02")
    replies = [await connection.request(one) for one in (half, sending())]
    hidden, foreign = (int(reply.fields["msgId"][16:], 16) for reply in replies)
    running.judge_by(lambda _identity, _action, resource: resource != "orders/#")
    view, back = RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK
    for code, field, more in ((view, "topic", {}), (back, "originTopic", {"group": "g", "delayLevel": "0"})):
        for named, answer in (({}, 16), ({field: "orders"}, 16), ({field: "mine"}, 1)):
            found = [
                await connection.request(Command(code, fields={"offset": str(at), **more, **named}))
                for at in (hidden, foreign, foreign + 8)
            ]
            assert [one.code for one in found] == [answer] * 3, named
            assert len({(one.remark or "").rstrip("0123456789") for one in found}) == 1


async def test_namespaces_before_names_keep_topics_groups_retries_and_dead_letters_apart(running) -> None:
    """As RocketMQ's clients write them with `namespace`; rules name each whole."""
    connection, spaces = running.connect(), ("A", "B")
    for space in spaces:
        sent = await connection.request(sending(space.encode(), topic=f"{space}%orders"))
        back = {"group": f"{space}%readers", "offset": str(int(sent.fields["msgId"][16:], 16)), "delayLevel": "0"}
        for more in ({}, {"maxReconsumeTimes": "0"}):
            answer = await connection.request(Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields=back | more))
            assert answer.code == 0
    await delivered(running, 10_000)
    for space in spaces:
        kept = [(f"{space}%orders", 1), (f"%RETRY%{space}%readers", 0), (f"%DLQ%{space}%readers", 0)]
        assert [[each.body for each in await pull(connection, *queue)] for queue in kept] == [[space.encode()]] * 3
    asked = []
    running.judge_by(lambda _identity, _action, resource: asked.append(resource) or resource == "A%orders")
    assert (await connection.request(sending(topic="A%orders"))).code == 0
    assert (await connection.request(sending(topic="B%orders"))).code == ResponseCode.NO_PERMISSION
    assert asked == ["A%orders", "B%orders"]


async def test_each_light_queue_needs_the_right_to_publish_there(running) -> None:
    """Alone and in a batch; what was refused is in no queue."""
    connection = running.connect()
    running.judge_by(lambda _identity, _action, resource: resource in {"orders", "plant/7"})
    light = "INNER_MULTI_DISPATCH\x01%LMQ%plant%2F7,%LMQ%"
    for name, code in (("plant%2F7", 0), ("plant%2F8", 16), ("plant%2F%23", 16)):
        properties = f"{light}{name}\x02"
        assert (await connection.request(sending(properties=properties))).code == code
        batch = sending(item(b"one") + item(b"two", properties.encode()), code=RequestCode.SEND_BATCH_MESSAGE)
        assert (await connection.request(batch)).code == code
    running.judge_by(lambda *_: True)
    assert [each.body for each in await pull(connection)] == [b"hello", b"one", b"two"]


async def test_what_waits_is_neither_handed_back_nor_viewed(running) -> None:
    """By its position, a half message or a delayed one would be delivered early; nor is there one inside a message."""
    connection = running.connect()
    half = sending(sysFlag="4", properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02")
    replies = [await connection.request(one) for one in (half, sending(properties="DELAY\x0118\x02"), sending())]
    assert {reply.code for reply in replies} == {0}
    waiting, delayed, sent = (int(reply.fields["msgId"][16:], 16) for reply in replies)
    back = {"group": "g", "delayLevel": "0"}
    for position in (waiting, delayed, sent + 8):
        fields = {"offset": str(position)}
        for code, more in ((RequestCode.CONSUMER_SEND_MSG_BACK, back), (RequestCode.VIEW_MESSAGE_BY_ID, {})):
            reply = await connection.request(Command(code, fields=fields | more))
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert (reply.remark or "").endswith(f"{'failed' if more else 'by the offset'}, {position}")
    assert running.broker.topics.table.get("%RETRY%g") is None


async def test_a_number_too_large_for_its_field_is_refused(running) -> None:
    """Offsets of many clients are written together: one that does not fit would take the others with it."""
    connection, another = running.connect(), running.connect()
    assert (await connection.request(sending(bornTimestamp=str(2**64)))).code == ResponseCode.INVALID_PARAMETER
    assert (await connection.request(sending())).code == 0
    fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": "1"}
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    wrong, right = await asyncio.gather(
        connection.request(Command(code, fields=fields | {"commitOffset": str(2**63)})),
        another.request(Command(code, fields=fields)),
    )
    assert (wrong.code, right.code) == (ResponseCode.INVALID_PARAMETER, 0)


async def test_properties_that_could_not_be_shown_again_are_refused(running) -> None:
    connection = running.connect()
    for properties in ("__rmq.flag\x01junk\x02", f"a\x01{'v' * 32_800}\x02"):
        assert (await connection.request(sending(properties=properties))).code == ResponseCode.MESSAGE_ILLEGAL
    assert await pull(connection) == []


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"sysFlag": "4"}, "TRAN_MSG"),
        ({"sysFlag": "8"}, "TRAN_MSG"),
        ({"sysFlag": "64"}, "0x40"),
        ({"sysFlag": "128"}, "inner batches"),
        ({"properties": "TRAN_MSG\x01true\x02"}, "transactional"),
        ({"properties": "_SYS_MSG_PRIORITY_\x013\x02"}, "has no priorities"),
        ({"properties": "TIMER_DEL_UNIQKEY\x017F\x02"}, "needs TIMER_DELIVER_MS"),
        ({"properties": "TIMER_DEL_UNIQKEY\x017F\x02TIMER_DELIVER_MS\x01soon\x02"}, "needs TIMER_DELIVER_MS"),
    ],
)
async def test_unsupported_requests_are_refused_by_name_and_nothing_is_stored(running, fields, named) -> None:
    connection = running.connect()
    reply = await connection.request(sending(topic="fresh", **fields))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert named in reply.remark
    assert (
        await connection.request(sending(topic="fresh", properties="TRAN_MSG\x01false\x02"))
    ).code == ResponseCode.SUCCESS


async def test_nobody_sends_to_the_topics_that_rocketmq_reserves(running) -> None:
    connection = running.connect()
    for topic in ("SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC"):
        fields = {"topic": topic, "queueId": "0", "producerGroup": "p", "sysFlag": "0", "bornTimestamp": "1"}
        reply = await connection.request(Command(RequestCode.SEND_MESSAGE, fields=fields, body=b"x"))
        assert reply.code == ResponseCode.NO_PERMISSION
        assert running.broker.topics.table.get(topic) is None
