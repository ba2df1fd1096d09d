"""POP from the request to the acknowledgement, or to the retry topic, over a broker on a real store."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from broker.config import LimitsConfig
from broker.pop.feature import PopFeature
from broker.pop.handles import retry_topic
from broker.pop.requests import MESSAGES_MAX
from broker.pop.revival import FIRST_POP_TIME
from remoting.client.connection import Connection
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.protocol.records.stored_message import StoredMessage, iter_stored
from tests.support.clock import ManualClock
from tests.unit.broker.conftest import BrokerBench

TOPIC, GROUP = "orders", "billing"
INVISIBLE_MS = 10_000


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[BrokerBench]:
    """A broker where one request can wait, and a group can have two messages of a queue in flight."""
    limits = LimitsConfig(pop_in_flight_max=2, parked_requests_max=1)
    bench = BrokerBench(tmp_path / "limited", ManualClock(), limits=limits)
    yield bench
    bench.store.close()


class Message:
    """One message as a client has it: its content, and the handle made from the answer."""

    def __init__(self, stored: StoredMessage, answer: Command) -> None:
        self.stored = stored
        self.body = stored.body
        self.topic = stored.topic.decode()
        fields = answer.fields
        starts = dict(tuple(part.rsplit(" ", 1)) for part in fields["startOffsetInfo"].split(";"))
        mark = "2" if self.topic.startswith("%RETRY%") else "0"
        start = starts[f"{mark} {stored.queue_id}"]
        self.handle = (
            f"{start} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} {mark} broker-a "
            f"{stored.queue_id} {stored.queue_offset}"
        )

    def command(self, code: int = RequestCode.ACK_MESSAGE, **fields: object) -> Command:
        """The acknowledgement, or another request about it."""
        named = {
            "consumerGroup": GROUP, "topic": self.topic, "queueId": self.stored.queue_id,
            "offset": self.stored.queue_offset, "extraInfo": self.handle,
        }  # fmt: skip
        return Command(code, fields={name: str(value) for name, value in (named | fields).items()})


def popping(code: int = RequestCode.POP_MESSAGE, **fields: object) -> Command:
    named = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 32, "invisibleTime": INVISIBLE_MS,
        "pollTime": 0, "bornTime": 0, "initMode": 0,
    }  # fmt: skip
    return Command(code, fields={name: str(value) for name, value in (named | fields).items()})


async def send(connection: Connection, *bodies: bytes, topic: str = TOPIC, queue: int = -1, tag: str = "") -> None:
    properties = f"TAGS\x01{tag}\x02" if tag else ""
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "5", "h": "0",
              "i": properties}  # fmt: skip
    for body in bodies:
        reply = await connection.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=body))
        assert reply.code == ResponseCode.SUCCESS, reply.remark


async def pop(connection: Connection, **fields: object) -> list[Message]:
    reply = await connection.request(popping(**fields))
    if reply.code == ResponseCode.POLLING_TIMEOUT:
        return []
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return [Message(stored, reply) for stored in iter_stored(reply.body)]


async def ack(connection: Connection, message: Message, **fields: object) -> int:
    return (await connection.request(message.command(**fields))).code


def feature(running) -> PopFeature:
    return next(each for each in running.broker.features if isinstance(each, PopFeature))


async def expire(running, ms: int = INVISIBLE_MS) -> None:
    """Let time pass and append again what is due."""
    running.clock.advance_ms(ms)
    feature(running).maintain(running.clock.now_ms())
    await running.settle()


def refused(running, reason: str) -> float:
    return running.registry.values().get(f"rocketmq_pop_refused_total{{{reason}}}", 0)


async def set_mode(connection: Connection, mode: object, **more: object) -> Command:
    body = {"topic": TOPIC, "consumerGroup": GROUP, "mode": mode, "popShareQueueNum": 0} | more
    return await connection.request(Command(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(body).encode()))


async def pull(connection: Connection, topic: str = TOPIC, **fields: object) -> Command:
    named = {"consumerGroup": GROUP, "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
             "commitOffset": 0, "subscription": "*"}  # fmt: skip
    text = {name: str(value) for name, value in (named | fields).items()}
    return await connection.request(Command(RequestCode.PULL_MESSAGE, fields=text))


async def test_a_message_is_given_once_and_complete_when_acknowledged(running) -> None:
    connection = running.connect()
    await send(connection, b"1", b"2", b"3")
    messages = await pop(connection)
    assert sorted(message.body for message in messages) == [b"1", b"2", b"3"]
    assert await pop(connection) == [], "they are in flight"
    assert feature(running).status() == {"pop_in_flight": 3}
    for message in messages:
        assert await ack(connection, message) == ResponseCode.SUCCESS
    await expire(running)
    assert await pop(connection) == []
    assert feature(running).status() == {"pop_in_flight": 0}


async def test_what_is_not_acknowledged_comes_again_and_delays_nothing_else(running) -> None:
    connection = running.connect()
    await send(connection, b"hung", queue=0)
    (hung,) = await pop(connection)
    await send(connection, b"next", queue=0)
    (behind,) = await pop(connection)
    assert await ack(connection, behind) == ResponseCode.SUCCESS
    await expire(running)
    (again,) = await pop(connection)
    assert (again.body, again.topic, again.stored.reconsume_times) == (b"hung", retry_topic(GROUP, TOPIC), 1)
    shown = dict(again.stored.properties)
    assert (shown[b"RETRY_TOPIC"], shown[FIRST_POP_TIME]) == (b"orders", hung.handle.split()[1].encode())
    assert await ack(connection, hung) == ResponseCode.NO_MESSAGE, (
        "its time is over, the copy belongs to another client"
    )
    assert await ack(connection, again) == ResponseCode.SUCCESS
    await expire(running)
    assert await pop(connection) == []
    assert running.registry.values()["rocketmq_pop_expired_total{retry}"] == 1


async def test_all_of_it_survives_a_restart(running) -> None:
    connection = running.connect()
    await send(connection, b"1", b"2", b"3", queue=0)
    first, second, _third = await pop(connection)
    assert await ack(connection, first) == ResponseCode.SUCCESS
    await running.restart()
    connection = running.connect()
    assert await pop(connection) == []
    assert await ack(connection, first) == ResponseCode.NO_MESSAGE
    assert await ack(connection, second) == ResponseCode.SUCCESS
    await expire(running)
    await running.restart()
    assert [message.body for message in await pop(running.connect())] == [b"3"]


async def test_a_message_tried_too_often_is_a_dead_letter(running) -> None:
    connection = running.connect()
    groups = running.broker.groups.groups
    groups.put(msgspec.structs.replace(groups.ensure(GROUP), retry_max_times=2))
    await send(connection, b"poison")
    for _ in range(3):
        (message,) = await pop(connection)
        assert message.body == b"poison"
        await expire(running)
    assert await pop(connection) == []
    (dead,) = iter_stored((await pull(connection, f"%DLQ%{GROUP}")).body)
    assert (dead.body, dict(dead.properties)[b"RETRY_TOPIC"]) == (b"poison", TOPIC.encode())


async def test_another_time_gives_another_handle(running) -> None:
    connection = running.connect()
    await send(connection, b"long work")
    (message,) = await pop(connection)
    running.clock.advance_ms(INVISIBLE_MS - 1)
    reply = await connection.request(
        message.command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=5 * INVISIBLE_MS)
    )
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    await expire(running, 2 * INVISIBLE_MS)
    assert await pop(connection) == []
    assert await ack(connection, message) == ResponseCode.NO_MESSAGE, "the old handle"
    parts = message.handle.split()
    parts[1:3] = reply.fields["popTime"], reply.fields["invisibleTime"]
    message.handle = " ".join(parts)
    assert await ack(connection, message) == ResponseCode.SUCCESS


async def test_a_shorter_time_brings_it_back_sooner(running) -> None:
    connection = running.connect()
    await send(connection, b"not now")
    (message,) = await pop(connection)
    reply = await connection.request(message.command(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, invisibleTime=0))
    assert reply.code == ResponseCode.SUCCESS
    await expire(running, 1)
    assert [again.body for again in await pop(connection)] == [b"not now"]


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"extraInfo": "nonsense"}, ResponseCode.INVALID_PARAMETER, "malformed"),
        ({"extraInfo": f"0 1 {INVISIBLE_MS} 0 0 broker-a 0 0"}, ResponseCode.NO_MESSAGE, "not_in_flight"),
        ({"consumerGroup": "thieves"}, ResponseCode.NO_MESSAGE, "not_in_flight"),
        ({"offset": 1}, ResponseCode.NO_MESSAGE, "out_of_range"),
        ({"offset": -1}, ResponseCode.NO_MESSAGE, "out_of_range"),
        ({"offset": 2**70}, ResponseCode.NO_MESSAGE, "out_of_range"),
        ({"offset": "x"}, ResponseCode.INVALID_PARAMETER, "malformed"),
        ({"queueId": 1}, ResponseCode.NO_MESSAGE, "out_of_range"),
        ({"queueId": 4}, ResponseCode.MESSAGE_ILLEGAL, "queue"),
        ({"queueId": -1}, ResponseCode.MESSAGE_ILLEGAL, "queue"),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST, None),
    ],
)
@pytest.mark.parametrize("code_of", [RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME])
async def test_a_handle_that_fits_nothing_changes_nothing(running, fields, code, reason, code_of) -> None:
    connection = running.connect()
    await send(connection, b"mine", queue=0)
    (message,) = await pop(connection)
    reply = await connection.request(message.command(code_of, **({"invisibleTime": 1} | fields)))
    assert reply.code == code, reply.remark
    assert reason is None or refused(running, reason) == 1
    assert await ack(connection, message) == ResponseCode.SUCCESS
    assert await ack(connection, message) == ResponseCode.NO_MESSAGE, "twice"


async def test_a_batch_is_acknowledged_and_what_is_not_in_flight_is_refused_alone(running) -> None:
    connection = running.connect()
    await send(connection, *(b"%d" % number for number in range(5)), queue=0)
    first, *_rest = messages = await pop(connection)
    assert len(messages) == 5
    start, pop_time, invisible, *_more = first.handle.split()

    async def acknowledge(bits: int, **more: object) -> Command:
        entry = {"c": GROUP, "t": TOPIC, "r": "0", "so": int(start), "q": 0, "rq": 0, "pt": int(pop_time),
                 "it": int(invisible), "b": base64.b64encode(bits.to_bytes(2, "little")).decode()} | more  # fmt: skip
        body = json.dumps({"brokerName": "broker-a", "acks": [entry]}).encode()
        return await connection.request(Command(RequestCode.BATCH_ACK_MESSAGE, body=body))

    assert (await acknowledge(0b0111)).code == ResponseCode.SUCCESS
    reply = await acknowledge(0b1001_1100)
    assert (reply.code, "2 of 4" in reply.remark) == (ResponseCode.NO_MESSAGE, True)
    assert feature(running).status() == {"pop_in_flight": 0}
    assert (await acknowledge(1, q=9)).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await acknowledge(0)).code == ResponseCode.NO_MESSAGE
    assert running.registry.values()["rocketmq_pop_acknowledged_total"] == 5


async def test_a_one_way_acknowledgement_counts(running) -> None:
    connection = running.connect()
    await send(connection, b"1")
    (message,) = await pop(connection)
    command = message.command()
    command.flag |= FLAG_ONEWAY
    connection.oneway(command)
    assert await pop(connection) == []
    assert feature(running).status() == {"pop_in_flight": 0}


async def test_a_pop_waits_for_a_message_and_ends_on_time(running) -> None:
    connection, other = running.connect(), running.connect()
    await send(connection, b"old", queue=0)
    assert len(await pop(connection)) == 1
    waiting = asyncio.ensure_future(pop(connection, pollTime=5_000))
    info = Command(RequestCode.POLLING_INFO, fields={"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1"})
    while (await other.request(info)).fields["pollingNum"] != "1":
        await asyncio.sleep(0)
    await send(other, b"new", queue=3)
    assert [message.body for message in await asyncio.wait_for(waiting, 10)] == [b"new"]
    assert (await other.request(info)).fields["pollingNum"] == "0"
    reply = await connection.request(popping(pollTime=20))
    assert reply.code == ResponseCode.POLLING_TIMEOUT


async def test_a_waiting_pop_gets_what_comes_again(running) -> None:
    connection, other = running.connect(), running.connect()
    await send(connection, b"again")
    assert len(await pop(connection)) == 1
    waiting = asyncio.ensure_future(pop(other, pollTime=5_000))
    await asyncio.sleep(0)
    await expire(running)
    assert [message.body for message in await asyncio.wait_for(waiting, 10)] == [b"again"]


async def test_too_many_waiting_pops_are_refused(limited) -> None:
    connection, other = limited.connect(), limited.connect()
    await send(connection, b"1")
    assert len(await pop(connection)) == 1
    waiting = asyncio.ensure_future(pop(other, pollTime=5_000))
    while not limited.broker.reading.long_polls:
        await asyncio.sleep(0)
    assert (await connection.request(popping(pollTime=5_000))).code == ResponseCode.POLLING_FULL
    await send(connection, b"2")
    assert len(await waiting) == 1


async def test_a_notification_tells_that_there_is_a_message(running) -> None:
    connection, other = running.connect(), running.connect()
    await send(connection, b"1")
    ask = popping(RequestCode.NOTIFICATION)
    assert (await connection.request(ask)).fields == {"hasMsg": "true", "pollingFull": "false"}
    await pop(connection)
    assert (await connection.request(ask)).fields["hasMsg"] == "false"
    waiting = asyncio.ensure_future(connection.request(popping(RequestCode.NOTIFICATION, pollTime=5_000)))
    await asyncio.sleep(0)
    await send(other, b"2")
    assert (await asyncio.wait_for(waiting, 10)).fields["hasMsg"] == "true"


async def test_a_peek_takes_nothing(running) -> None:
    connection = running.connect()
    await send(connection, b"1")
    for _ in range(2):
        reply = await connection.request(popping(RequestCode.PEEK_MESSAGE))
        assert [stored.body for stored in iter_stored(reply.body)] == [b"1"]
    assert feature(running).status() == {"pop_in_flight": 0}
    assert (await pull(connection)).code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND), "still free to pull"


async def test_only_matching_messages_are_given_and_others_are_passed_over(running) -> None:
    connection = running.connect()
    await send(connection, b"a1", b"a2", queue=0, tag="a")
    await send(connection, b"b1", queue=0, tag="b")
    assert [message.body for message in await pop(connection, exp="b", expType="TAG")] == [b"b1"]
    assert await pop(connection) == []
    reply = await connection.request(popping(exp="a >", expType="SQL92"))
    assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_pop_takes_as_many_as_it_asks_for_from_every_queue_in_turn(running) -> None:
    connection = running.connect()
    for queue in range(4):
        await send(connection, *(b"%d" % queue for _ in range(3)), queue=queue)
    first_queues = []
    for _ in range(4):
        messages = await pop(connection, maxMsgNums=2)
        assert len(messages) == 2
        first_queues.append(messages[0].stored.queue_id)
    assert sorted(first_queues) == [0, 1, 2, 3]
    assert len(await pop(connection, queueId=2)) == 1
    assert len(await pop(connection)) == 3


async def test_a_group_that_begins_at_the_end_gets_what_comes_after_its_first_pop(running) -> None:
    connection = running.connect()
    await send(connection, b"old", queue=0)
    assert await pop(connection, initMode=1) == []
    await send(connection, b"new", queue=0)
    assert [message.body for message in await pop(connection, initMode=1)] == [b"new"]


async def test_a_queue_with_too_many_in_flight_gives_no_more_and_others_go_on(limited) -> None:
    connection = limited.connect()
    await send(connection, b"1", b"2", b"3", queue=0)
    first, _second = await pop(connection)
    assert await pop(connection) == []
    assert len(await pop(connection, consumerGroup="others")) == 2
    await send(connection, b"4", queue=1)
    assert [message.body for message in await pop(connection)] == [b"4"]
    assert await ack(connection, first) == ResponseCode.SUCCESS
    assert [message.body for message in await pop(connection)] == [b"3"]


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"maxMsgNums": MESSAGES_MAX + 1}, ResponseCode.INVALID_PARAMETER, "count"),
        ({"invisibleTime": 0}, ResponseCode.INVALID_PARAMETER, "time"),
        ({"invisibleTime": 2**32}, ResponseCode.INVALID_PARAMETER, "time"),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER, "queue"),
        ({"topic": "%LMQ%a"}, ResponseCode.INVALID_PARAMETER, "topic"),
        ({"topic": f"%RETRY%{GROUP}+{TOPIC}"}, ResponseCode.INVALID_PARAMETER, "topic"),
        ({"order": "true"}, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "order"),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST, None),
    ],
)
async def test_an_invalid_pop_is_refused(running, fields, code, reason) -> None:
    connection = running.connect()
    await send(connection, b"1")
    assert (await connection.request(popping(**fields))).code == code
    assert reason is None or refused(running, reason) == 1
    assert len(await pop(connection)) == 1


async def test_a_group_pulls_or_pops_a_topic_until_it_is_switched(running) -> None:
    connection = running.connect()
    await send(connection, b"1", queue=0)
    (message,) = await pop(connection)
    commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "0"}
    assert (await pull(connection)).code == ResponseCode.ILLEGAL_OPERATION
    reply = await connection.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=commit))
    assert reply.code == ResponseCode.ILLEGAL_OPERATION
    assert (await set_mode(connection, "PULL")).code == ResponseCode.SYSTEM_BUSY, "one is in flight"
    await expire(running)
    assert (await set_mode(connection, "PULL")).code == ResponseCode.SYSTEM_BUSY, "it is to be delivered again"
    (message,) = await pop(connection)
    assert await ack(connection, message) == ResponseCode.SUCCESS
    assert (await set_mode(connection, "PULL")).code == ResponseCode.SUCCESS
    assert (await connection.request(popping())).code == ResponseCode.ILLEGAL_OPERATION
    assert refused(running, "mode") == 1
    await running.restart()
    connection = running.connect()
    assert (await pull(connection, queueOffset=1)).code == ResponseCode.PULL_NOT_FOUND
    await send(connection, b"2", queue=0)
    assert (
        await connection.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=commit | {"commitOffset": "1"}))
    ).code == 0
    assert (await set_mode(connection, "POP")).code == ResponseCode.SUCCESS
    assert [each.body for each in await pop(connection)] == [b"2"], "it continues where it was"


async def test_a_group_that_committed_offsets_is_not_popped_by_chance(running) -> None:
    connection = running.connect()
    await send(connection, b"1", queue=0)
    commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "0"}
    assert (await connection.request(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=commit))).code == 0
    assert (await connection.request(popping())).code == ResponseCode.ILLEGAL_OPERATION
    assert (await pull(connection)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"mode": "BOTH"}, ResponseCode.INVALID_PARAMETER),
        ({"mode": 7}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "%RETRY%billing"}, ResponseCode.NO_PERMISSION),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
    ],
)
async def test_an_invalid_mode_is_refused(running, more, code) -> None:
    connection = running.connect()
    await send(connection, b"1")
    assert (await set_mode(connection, **({"mode": "POP"} | more))).code == code


async def test_what_a_deleted_group_had_is_given_up(running) -> None:
    connection = running.connect()
    await send(connection, b"1")
    await pop(connection)
    running.broker.groups.groups.delete(GROUP)
    await expire(running)
    assert running.registry.values()["rocketmq_pop_expired_total{gone}"] == 1
    assert (await pull(connection)).code != ResponseCode.ILLEGAL_OPERATION


async def test_the_timer_revives_messages(running) -> None:
    connection = running.connect()
    await send(connection, b"1")
    await pop(connection)
    running.clock.advance_ms(INVISIBLE_MS)
    feature(running).start()
    try:
        assert [message.body for message in await pop(connection, pollTime=10_000)] == [b"1"]
    finally:
        feature(running).stop()
