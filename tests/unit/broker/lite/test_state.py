"""Counts and expiration of lite topics, and what is in flight, on a real store."""

from __future__ import annotations

import asyncio

from broker.lite.state import DUE_PER_PASS, RETRY_MS
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_mqtt_image
from tests.unit.broker.conftest import BrokerBench
from tests.unit.broker.lite.client import INVISIBLE_MS, PARENT, ack, make_group, make_parent, pop, send, subscribe
from tests.unit.broker.lite.test_requests import expire, feature

MINUTE_MS = 60_000


async def made(running: BrokerBench, minutes: int) -> None:
    await make_parent(running.connect(), attributes=f"+message.type=LITE,+lite.topic.expiration={minutes}")
    await make_group(running.connect())


def topics(running: BrokerBench) -> int:
    return feature(running).status()["lite_topics"]


async def mqtt(running: BrokerBench, topic: str, body: bytes = b"x") -> None:
    image = encode_mqtt_image(topic.encode(), body, 1, 5, b"device")
    assert (await running.connect().request(Command(Code.APPEND_MANY, body=image))).code == 0


async def test_lite_topics_are_counted_however_they_are_made_and_after_a_restart(running: BrokerBench) -> None:
    await mqtt(running, f"{PARENT}/before")
    await made(running, -1)
    await send(running.connect(), "a", b"0", b"1")
    await mqtt(running, f"{PARENT}/b/c")
    await mqtt(running, "plant/1")
    await running.settle()
    assert topics(running) == 3
    await running.restart()
    assert topics(running) == 3
    await make_parent(running.connect(), attributes="+message.type=NORMAL")
    assert topics(running) == 0


async def test_a_lite_topic_without_messages_for_long_vanishes_with_its_queue_and_offsets(running: BrokerBench) -> None:
    await made(running, 2)
    connection = running.connect()
    await subscribe(connection, "a", "b")
    await send(connection, "a", b"0", b"1")
    await pop(connection, maxMsgNum=1, invisibleTime=10 * MINUTE_MS)
    running.clock.advance_ms(MINUTE_MS)
    await send(connection, "b", b"2")
    await expire(running, MINUTE_MS)
    assert topics(running) == 1
    assert running.registry.values()["rocketmq_lite_in_flight"] == 0
    assert running.store.queues.find(f"%LMQ%{PARENT}%2Fa".encode()) is None
    await send(connection, "a", b"3")
    assert [each.body for each in await pop(connection)] == [b"2", b"3"], "a new queue, still subscribed"
    await running.restart()
    await subscribe(running.connect(), "a")
    assert topics(running) == 2


async def test_expiration_counts_from_the_last_message_after_a_restart_too(running: BrokerBench) -> None:
    await made(running, 2)
    await send(running.connect(), "a", b"0")
    running.clock.advance_ms(MINUTE_MS)
    await running.restart()
    await expire(running, 0)
    assert topics(running) == 1
    await expire(running, MINUTE_MS)
    assert topics(running) == 0


async def test_a_change_of_the_expiration_counts_for_what_is_there(running: BrokerBench) -> None:
    await made(running, -1)
    await send(running.connect(), "a", b"0")
    await expire(running, 100 * MINUTE_MS)
    assert topics(running) == 1
    await made(running, 200)
    await expire(running, 0)
    assert topics(running) == 1
    await made(running, 50)
    await expire(running, 0)
    assert topics(running) == 0


async def test_a_lite_topic_with_an_mqtt_subscriber_stays(running: BrokerBench) -> None:
    await made(running, 1)
    await send(running.connect(), "a", b"0")
    queue_id = running.store.queues.find(f"%LMQ%{PARENT}%2Fa".encode())
    assert queue_id is not None
    running.broker.subscriptions.subscribers.add("device", queue_id, 0)
    await expire(running, 2 * MINUTE_MS)
    assert topics(running) == 1
    running.broker.subscriptions.subscribers.remove("device", queue_id, 0)
    await expire(running, 2 * MINUTE_MS)
    assert topics(running) == 0


async def test_all_overdue_messages_of_many_lite_topics_are_given_again(running: BrokerBench) -> None:
    await made(running, -1)
    connection = running.connect()
    names = [f"t{number}" for number in range(DUE_PER_PASS + 40)]
    await subscribe(connection, *names)
    for name in names:
        await send(connection, name, b"x")
    given = 0
    while found := await pop(connection):
        given += len(found)
    assert given == len(names)
    await expire(running)
    await expire(running, 0)
    again = 0
    while found := await pop(connection):
        again += len(found)
    assert again == given


async def test_messages_of_a_group_that_was_deleted_are_in_flight_no_longer(running: BrokerBench) -> None:
    await made(running, -1)
    connection = running.connect()
    await subscribe(connection, "a")
    await send(connection, "a", b"0")
    await pop(connection)
    await connection.request(Command(Code.DELETE_SUBSCRIPTIONGROUP, fields={"groupName": "workers"}))
    await expire(running)
    assert running.registry.values()["rocketmq_lite_in_flight"] == 0


async def test_a_message_acknowledged_out_of_order_does_not_come_again(running: BrokerBench) -> None:
    await made(running, -1)
    connection = running.connect()
    await subscribe(connection, "a")
    await send(connection, "a", *(b"%d" % number for number in range(40)))
    first = await pop(connection)
    assert len(first) == 32
    await ack(connection, *first[5:])
    await expire(running)
    assert [each.body for each in await pop(connection)] == [b"%d" % number for number in range(5)]


async def test_what_is_not_confirmed_yet_is_neither_given_up_nor_expired(running: BrokerBench) -> None:
    await made(running, 2)
    connection = running.connect()
    await subscribe(connection, "a")
    await send(connection, "a", b"0", b"1")
    assert len(await pop(connection)) == 2
    await running.take_over()
    running.clock.advance_ms(10 * MINUTE_MS)
    await subscribed_without_answer(running)
    assert await pop(running.connect()) == []
    feature(running).maintain(running.clock.now_ms())
    assert (topics(running), running.registry.values()["rocketmq_lite_in_flight"]) == (1, 2)
    running.confirm()
    await running.settle()
    connection = running.connect()
    await subscribe(connection, "a")
    assert [each.body for each in await pop(connection)] == [b"0", b"1"]
    assert running.registry.values()["rocketmq_lite_passed_over_total{gone}"] == 0


async def test_what_was_not_confirmed_is_offered_when_it_is(running: BrokerBench) -> None:
    """The client that was refused it meanwhile need not subscribe again: its event was spent on nothing."""
    await made(running, -1)
    connection = running.connect()
    await subscribe(connection, "a")
    await send(connection, "a", b"0", b"1")
    assert len(await pop(connection)) == 2
    await running.take_over()
    running.clock.advance_ms(10 * MINUTE_MS)
    again = running.connect()
    asking = asyncio.create_task(subscribe(again, "a"))
    await asyncio.sleep(0)
    ownership = feature(running)._ownership
    assert ownership.overdue(running.clock.now_ms(), lambda _group: True) == [("workers", b"")]
    assert await pop(again) == []
    running.confirm()
    await running.settle()
    await asking
    running.clock.advance_ms(RETRY_MS)
    feature(running)._free(running.clock.now_ms())
    assert [each.body for each in await pop(again)] == [b"0", b"1"]


async def subscribed_without_answer(running: BrokerBench) -> None:
    """The client subscribes; nothing of it is confirmed, and it does not wait for that."""
    asking = asyncio.create_task(subscribe(running.connect(), "a"))
    await asyncio.sleep(0)
    asking.cancel()


async def test_a_damaged_message_is_passed_over_and_counted(running: BrokerBench) -> None:
    await made(running, -1)
    connection = running.connect()
    await subscribe(connection, "a")
    await send(connection, "a", b"0", b"1")
    assert len(await pop(connection)) == 2
    running.damage(running.store.queues.find(f"%LMQ%{PARENT}%2Fa".encode()) or 0, 0)
    await expire(running, INVISIBLE_MS)
    assert [each.body for each in await pop(connection)] == [b"1"]
    assert running.registry.values()["rocketmq_lite_passed_over_total{damaged}"] == 1
