"""From which queues a pop gets its messages, and how many."""

from __future__ import annotations

from remoting.protocol.frames.codes import ResponseCode
from tests.unit.broker.pop.client import ack, pop, popping, send


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
