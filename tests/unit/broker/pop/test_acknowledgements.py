"""Acknowledgements and changes of time, and what is refused, over a broker on a real store."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from broker.store.errors import StoreFull
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from tests.unit.broker.pop.client import (
    GROUP,
    INVISIBLE_MS,
    TOPIC,
    Message,
    ack,
    expire,
    feature,
    pop,
    refusals,
    refused,
    send,
)


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
        ({"offset": 2**62}, ResponseCode.NO_MESSAGE, "out_of_range"),
        ({"offset": 2**70}, ResponseCode.INVALID_PARAMETER, "malformed"),
        ({"offset": "x"}, ResponseCode.INVALID_PARAMETER, "malformed"),
        ({"queueId": 1}, ResponseCode.NO_MESSAGE, "out_of_range"),
        ({"queueId": 4}, ResponseCode.MESSAGE_ILLEGAL, "queue"),
        ({"queueId": -1}, ResponseCode.MESSAGE_ILLEGAL, "queue"),
        ({"queueId": "x"}, ResponseCode.INVALID_PARAMETER, "malformed"),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST, "topic"),
    ],
)
@pytest.mark.parametrize("code_of", [RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME])
async def test_a_handle_that_fits_nothing_changes_nothing(running, fields, code, reason, code_of) -> None:
    connection = running.connect()
    await send(connection, b"mine", queue=0)
    (message,) = await pop(connection)
    reply = await connection.request(message.command(code_of, **({"invisibleTime": 1} | fields)))
    assert reply.code == code, reply.remark
    assert (refused(running, reason), refusals(running)) == (1, 1)
    assert await ack(connection, message) == ResponseCode.SUCCESS
    assert await ack(connection, message) == ResponseCode.NO_MESSAGE, "twice"


def batch(message: Message, bits: int, **more: object) -> Command:
    """The acknowledgement of the messages of a queue that were popped with this one, the first of them."""
    start, pop_time, invisible, *_more = message.handle.split()
    entry = {"c": GROUP, "t": TOPIC, "r": "0", "so": int(start), "q": 0, "rq": 0, "pt": int(pop_time),
             "it": int(invisible), "b": base64.b64encode(bits.to_bytes(9, "little")).decode()} | more  # fmt: skip
    body = json.dumps({"brokerName": "broker-a", "acks": [entry]}).encode()
    return Command(RequestCode.BATCH_ACK_MESSAGE, body=body)


async def test_a_batch_is_acknowledged_and_what_is_not_in_flight_is_refused_alone(running) -> None:
    connection = running.connect()
    await send(connection, *(b"%d" % number for number in range(5)), queue=0)
    first, *_rest = messages = await pop(connection)
    assert len(messages) == 5
    assert (await connection.request(batch(first, 0b0111))).code == ResponseCode.SUCCESS
    reply = await connection.request(batch(first, 0b1001_1100))
    assert (reply.code, "2 of 4" in reply.remark) == (ResponseCode.NO_MESSAGE, True)
    start = int(first.handle.split()[0])
    assert json.loads(reply.body) == [[0, start + 2], [0, start + 7]]
    assert feature(running).status() == {"pop_in_flight": 0}
    assert running.registry.values()["rocketmq_pop_acknowledged_total"] == 5


@pytest.mark.parametrize(
    ("more", "code", "reason"),
    [
        ({"q": 9}, ResponseCode.MESSAGE_ILLEGAL, "queue"),
        ({"q": 1}, ResponseCode.NO_MESSAGE, "not_in_flight"),
        ({"q": "x"}, ResponseCode.INVALID_PARAMETER, "malformed"),
        ({"b": ""}, ResponseCode.NO_MESSAGE, "not_in_flight"),
        ({"b": "*"}, ResponseCode.INVALID_PARAMETER, "malformed"),
        ({"b": base64.b64encode(bytes(600)).decode()}, ResponseCode.INVALID_PARAMETER, "malformed"),
        ({"c": "thieves"}, ResponseCode.NO_MESSAGE, "not_in_flight"),
        ({"t": "unknown"}, ResponseCode.TOPIC_NOT_EXIST, "topic"),
        ({"pt": 1}, ResponseCode.NO_MESSAGE, "not_in_flight"),
        ({"it": 1}, ResponseCode.NO_MESSAGE, "not_in_flight"),
        ({"so": 2**59}, ResponseCode.NO_MESSAGE, "not_in_flight"),
        ({"so": -1}, ResponseCode.INVALID_PARAMETER, "malformed"),
    ],
)
async def test_a_batch_that_fits_nothing_changes_nothing(running, more, code, reason) -> None:
    connection = running.connect()
    await send(connection, b"1", b"2", queue=0)
    first, second = await pop(connection)
    assert (await connection.request(batch(first, 0b11, **more))).code == code
    assert (refused(running, reason), refusals(running)) == (1, 1)
    assert feature(running).status() == {"pop_in_flight": 2}
    assert (await connection.request(batch(first, 0b11))).code == ResponseCode.SUCCESS
    assert await ack(connection, second) == ResponseCode.NO_MESSAGE, "twice"


async def test_a_batch_with_a_queue_that_is_not_there_is_refused_whole(running) -> None:
    connection = running.connect()
    await send(connection, b"1", queue=0)
    (first,) = await pop(connection)
    request, wrong = batch(first, 0b1), batch(first, 0b1, q=99)
    body = json.loads(request.body)
    body["acks"] += json.loads(wrong.body)["acks"]
    request.body = json.dumps(body).encode()
    assert (await connection.request(request)).code == ResponseCode.MESSAGE_ILLEGAL
    assert await ack(connection, first) == ResponseCode.SUCCESS


@pytest.mark.parametrize("bits", [0b1, 0b11, 0b101, 2**32, 2**40 + 2, 2**40 - 1, 2**40 - 4, 2**41 - 2**29])
async def test_any_part_of_a_pop_is_acknowledged_by_its_bits(running, bits) -> None:
    connection = running.connect()
    await send(connection, *(b"%d" % number for number in range(29)), queue=0)
    assert len(await pop(connection, maxMsgNums=29)) == 29
    await send(connection, *(b"%d" % number for number in range(41)), queue=0)
    first, *_rest = await pop(connection)
    await pop(connection)
    left = 70 - bits.bit_count()
    assert (await connection.request(batch(first, bits))).code == ResponseCode.SUCCESS
    assert feature(running).status() == {"pop_in_flight": left}
    assert (await connection.request(batch(first, bits))).code == ResponseCode.NO_MESSAGE
    await running.restart()
    assert feature(running).status() == {"pop_in_flight": left}


async def test_what_is_named_twice_in_a_turn_is_done_once(running) -> None:
    connection = running.connect()
    await send(connection, *(b"%d" % number for number in range(5)), queue=0)
    first, *_rest = await pop(connection)
    replies = await asyncio.gather(*(connection.request(batch(first, bits)) for bits in (0b110, 0b11111, 0b1001)))
    assert [reply.code for reply in replies] == [ResponseCode.SUCCESS, ResponseCode.NO_MESSAGE, ResponseCode.NO_MESSAGE]
    assert ["3 of 5" in replies[1].remark, "0 of 2" in replies[2].remark] == [True, True]
    assert running.registry.values()["rocketmq_pop_acknowledged_total"] == 5


async def test_an_acknowledgement_that_is_too_late_is_refused_and_the_message_comes_again(running) -> None:
    connection = running.connect()
    await send(connection, b"1", b"2", queue=0)
    first, second = await pop(connection)
    await expire(running)
    assert await ack(connection, first) == ResponseCode.NO_MESSAGE
    assert (await connection.request(batch(first, 0b11))).code == ResponseCode.NO_MESSAGE
    assert refused(running, "not_in_flight") == 2
    assert [message.body for message in await pop(connection)] == [first.body, second.body]


async def test_a_one_way_acknowledgement_counts(running) -> None:
    connection = running.connect()
    await send(connection, b"1")
    (message,) = await pop(connection)
    command = message.command()
    command.flag |= FLAG_ONEWAY
    connection.oneway(command)
    assert await pop(connection) == []
    assert feature(running).status() == {"pop_in_flight": 0}


async def test_acknowledgements_of_one_turn_are_one_record_and_each_counts_once(running) -> None:
    connection = running.connect()
    await send(connection, *(b"%d" % number for number in range(40)), queue=0)
    await send(connection, b"40", queue=1)
    messages = await pop(connection) + await pop(connection)
    appends = 0
    append_state = running.store.append_state

    def counted(changes):
        nonlocal appends
        appends += 1
        return append_state(changes)

    running.store.append_state = counted
    codes = await asyncio.gather(*(ack(connection, message) for message in [*messages, messages[3]]))
    assert codes == [ResponseCode.SUCCESS] * 41 + [ResponseCode.NO_MESSAGE]
    assert appends == 1
    assert feature(running).status() == {"pop_in_flight": 0}
    assert running.registry.values()["rocketmq_pop_acknowledged_total"] == 41
    await expire(running)
    assert await pop(connection) == []


async def test_a_pop_in_the_same_turn_finds_what_was_acknowledged_done(limited) -> None:
    connection = limited.connect()
    await send(connection, b"1", b"2", b"3", b"4", queue=0)
    messages = await pop(connection)
    assert len(messages) == 2
    done, _, found = await asyncio.gather(*(ack(connection, message) for message in messages), pop(connection))
    assert done == ResponseCode.SUCCESS
    assert [message.body for message in found] == [b"3", b"4"]


async def test_what_cannot_be_written_is_refused_and_stays_in_flight(running, monkeypatch) -> None:
    connection = running.connect()
    await send(connection, b"1", b"2")
    messages = await pop(connection)

    def full(_changes):
        raise StoreFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(running.store, "append_state", full)
        codes = await asyncio.gather(*(ack(connection, message) for message in messages))
    assert codes == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert running.registry.values()["rocketmq_pop_acknowledged_total"] == 0
    assert [await ack(connection, message) for message in messages] == [ResponseCode.SUCCESS] * 2
