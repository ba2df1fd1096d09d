"""From which queues a pop gets its messages, and how many."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from broker.groups.groups import changed_attributes
from broker.pop.handles import retry_topic
from broker.topics.topics import TopicSettings
from remoting.client.connection import Connection
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from runtime.config import assign
from tests.unit.broker.pop.client import GROUP, INVISIBLE_MS, TOPIC, ack, expire, pop, popping, send


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


async def test_a_group_that_begins_at_the_end_gets_all_of_a_young_queue(running) -> None:
    """What was sent before the first consumer of a new topic came, too: RocketMQ's proxy begins at the end always."""
    connection = running.connect()
    await send(connection, b"old", queue=0)
    assert [message.body for message in await pop(connection, initMode=1)] == [b"old"]
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


async def ranked(running, connection: Connection) -> None:
    settings = TopicSettings(name=TOPIC, read_queue_count=3, write_queue_count=3)
    running.broker.topics.table.put(msgspec.structs.replace(settings, attributes={"message.type": "PRIORITY"}))
    for number, priority in enumerate((0, 2, 1, 9, 1, 0)):
        await send(connection, b"%d: %d" % (priority, number), priority=priority)


async def test_higher_priorities_are_given_first_and_in_order_within_each(running) -> None:
    connection = running.connect()
    await ranked(running, connection)
    assert [message.body for message in await pop(connection, maxMsgNums=4)] == [b"2: 1", b"9: 3", b"1: 2", b"1: 4"]
    await send(connection, b"2: late", priority=2)
    assert [message.body for message in await pop(connection)] == [b"2: late", b"0: 0", b"0: 5"]
    given = {key: value for key, value in running.registry.values().items() if "by_priority" in key}
    assert {key.split("{")[1]: value for key, value in given.items() if "{" in key} == {"0}": 2, "1}": 2, "2}": 3}


async def test_what_comes_again_keeps_its_priority(running) -> None:
    connection = running.connect()
    await ranked(running, connection)
    assert len(await pop(connection)) == 6
    await expire(running)
    again = await pop(connection)
    assert [message.body[:1] for message in again] == [b"2", b"9", b"1", b"1", b"0", b"0"]
    assert {message.topic for message in again} == {retry_topic(GROUP, TOPIC)}
    for message in again:
        assert await ack(connection, message) == ResponseCode.SUCCESS
    await expire(running)
    assert await pop(connection) == []


async def test_a_group_has_some_of_its_pops_go_by_turns(running) -> None:
    connection = running.connect()
    await ranked(running, connection)
    groups = running.broker.groups.groups
    groups.put(msgspec.structs.replace(groups.ensure(GROUP), attributes={"priority.factor": "0"}))
    first = [message.body[:1] for _ in range(3) for message in await pop(connection, maxMsgNums=1)]
    assert sorted(first) == [b"0", b"1", b"2"]
    groups.put(msgspec.structs.replace(groups.ensure(GROUP), attributes={"priority.factor": "100"}))
    assert [message.body[:1] for message in await pop(connection)] == [b"9", b"1", b"0"]


@pytest.mark.parametrize("value", ["-1", "101", "x", "", "1e2", "\u00b2"])
def test_a_factor_that_is_no_percentage_is_refused(value) -> None:
    with pytest.raises(Refused, match=r"priority\.factor"):
        changed_attributes({}, {"+priority.factor": value})


async def test_no_message_is_kept_back_by_a_busy_queue(running) -> None:
    connection = running.connect()
    for _ in range(8):
        await send(connection, *(b"busy" for _ in range(40)), queue=0)
    await send(connection, b"rare", queue=3)
    found = [message.body for _ in range(5) for message in await pop(connection)]
    assert b"rare" in found


async def test_waiting_members_of_a_group_get_messages_in_turn(running) -> None:
    connection, members = running.connect(), [running.connect() for _ in range(3)]
    await send(connection, b"first", queue=0)
    assert len(await pop(connection)) == 1
    order = []

    async def member(number: int) -> None:
        order.append((number, (await pop(members[number], pollTime=60_000, maxMsgNums=1))[0].body))

    waiting = []
    for number in range(3):
        waiting.append(asyncio.ensure_future(member(number)))
        while len(running.broker.reading.long_polls) <= number:
            await asyncio.sleep(0)
    for number in range(3):
        await send(connection, b"%d" % number, queue=0)
    await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert sorted(order) == [(0, b"0"), (1, b"1"), (2, b"2")]


async def test_a_pop_that_waits_for_room_is_woken_by_an_acknowledgement(limited) -> None:
    connection, other = limited.connect(), limited.connect()
    await send(connection, b"1", b"2", b"3", queue=0)
    first, _second = await pop(connection)
    waiting = asyncio.ensure_future(pop(other, pollTime=60_000))
    while not limited.broker.reading.long_polls:
        await asyncio.sleep(0)
    assert await ack(connection, first) == ResponseCode.SUCCESS
    assert [message.body for message in await asyncio.wait_for(waiting, 10)] == [b"3"]


async def test_a_pop_that_waits_for_room_is_woken_when_a_time_is_over(limited) -> None:
    connection, other = limited.connect(), limited.connect()
    groups = limited.broker.groups.groups
    groups.put(msgspec.structs.replace(groups.ensure(GROUP), retry_max_times=0))
    await send(connection, b"1", b"2", b"3", queue=0)
    assert len(await pop(connection)) == 2
    waiting = asyncio.ensure_future(pop(other, pollTime=60_000))
    while not limited.broker.reading.long_polls:
        await asyncio.sleep(0)
    await expire(limited)
    assert [message.body for message in await asyncio.wait_for(waiting, 10)] == [b"3"]


async def test_another_limit_counts_from_the_next_pop(limited) -> None:
    connection = limited.connect()
    await send(connection, b"1", b"2", b"3", b"4", queue=0)
    assert len(await pop(connection)) == 2
    assign(limited.broker.tools.config, "limits.pop_in_flight_max", 3)
    assert [message.body for message in await pop(connection)] == [b"3"]


def moving(offset: int) -> Command:
    """A request of resetOffset for queue 0."""
    fields = {"group": GROUP, "topic": TOPIC, "queueId": "0", "offset": str(offset)}
    return Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields=fields)


async def test_a_moved_offset_gives_again_what_lies_behind_it(running) -> None:
    connection = running.connect()
    await send(connection, b"0", b"1", b"2", b"3", queue=0)
    done, mine = await pop(connection, maxMsgNums=2)
    assert await ack(connection, done) == ResponseCode.SUCCESS
    running.clock.advance_ms(1)
    assert (await connection.request(moving(0))).code == ResponseCode.SUCCESS
    again = await pop(connection)
    assert [message.body for message in again] == [b"0", b"1", b"2", b"3"]
    assert await ack(connection, mine) == ResponseCode.NO_MESSAGE, "another handle owns it"
    assert (await connection.request(moving(4))).code == ResponseCode.SUCCESS
    assert [await ack(connection, message) for message in again] == [ResponseCode.SUCCESS] * 4


async def test_a_moved_offset_counts_in_order_too_once_the_queue_is_open(running) -> None:
    connection = running.connect()
    await send(connection, b"0", b"1", b"2", b"3", queue=0)
    assert await ack(connection, *await pop(connection, maxMsgNums=1, order="true")) == ResponseCode.SUCCESS
    (mine,) = await pop(connection, maxMsgNums=1, order="true")
    assert (await connection.request(moving(0))).code == ResponseCode.SUCCESS
    assert await pop(connection, order="true") == [], "what is in flight closes the queue"
    running.clock.advance_ms(INVISIBLE_MS)
    again = await pop(connection, order="true")
    assert [message.body for message in again] == [b"0", b"1", b"2", b"3"]
    assert await ack(connection, mine) == ResponseCode.NO_MESSAGE
    assert [await ack(connection, message) for message in again] == [ResponseCode.SUCCESS] * 4
    assert await pop(connection, order="true") == []
