"""What a replica took of POP: taken over once, whatever the order and the repetition, and only where it still fits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from broker.config import ReplicationConfig
from broker.groups.locks import HOLD_MS
from broker.pop.merging import GivenItem, Item
from broker.requests import merged_items
from remoting.protocol.errors import RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from tests.support.clock import ManualClock
from tests.unit.broker.conftest import BrokerBench
from tests.unit.broker.pop.client import (
    GROUP,
    INVISIBLE_MS,
    TOPIC,
    Message,
    ack,
    expire,
    feature,
    pop,
    popping,
    send,
    set_mode,
)


async def merge(running, *items: Item) -> int:
    command = Command(RequestCode.MERGE_POPS, body=msgspec.json.encode(items))
    return (await running.connect().request(command)).code


def item(message: Message, pop_ms: int = 0, invisible_ms: int = 0) -> Item:
    """What a replica kept of a message that a client has; of one that is done without times."""
    _first, since, length, *_rest = message.handle.split()
    stored = message.stored
    return (
        GROUP, message.topic, stored.queue_id, stored.queue_offset, int(since), int(length), pop_ms, invisible_ms,
    )  # fmt: skip


def left_out(running) -> float:
    return running.broker.tools.metrics.dropped.child("pop_not_merged").value


async def given(running, *bodies: bytes, **fields: object) -> list[Message]:
    """Messages of one queue that the group has, in their order."""
    await send(running.connect(), *bodies, queue=0)
    return sorted(await pop(running.connect(), **fields), key=lambda message: message.stored.queue_offset)


@pytest.mark.parametrize("order", ["false", "true"])
async def test_what_was_acknowledged_elsewhere_is_done(running, order: str) -> None:
    first, second = await given(running, b"1", b"2", order=order)
    for _ in range(2):
        assert await merge(running, item(first)) == ResponseCode.SUCCESS
        assert running.store.confirm_position == running.store.end_position, "it is confirmed"
        await running.restart()
    assert (left_out(running), feature(running).status()) == (0, {"pop_in_flight": 1})
    assert await ack(running.connect(), first) == ResponseCode.NO_MESSAGE
    await expire(running)
    assert [message.body for message in await pop(running.connect(), order=order)] == [second.body]


@pytest.mark.parametrize("order", ["false", "true"])
async def test_what_was_owned_for_longer_elsewhere_is_owned_for_longer(running, order: str) -> None:
    first, second = await given(running, b"1", b"2", order=order)
    now_ms = running.clock.now_ms()
    assert await merge(running, item(first, now_ms + 1, 2 * INVISIBLE_MS - 1), item(second)) == ResponseCode.SUCCESS
    assert await merge(running, item(first, now_ms + 1, 2 * INVISIBLE_MS - 1), item(second)) == ResponseCode.SUCCESS
    assert left_out(running) == 0
    await expire(running)
    assert await pop(running.connect(), order=order) == []
    await expire(running)
    assert [message.body for message in await pop(running.connect(), order=order)] == [b"1"], "it is not forgotten"


async def test_a_release_beside_a_shorter_ownership_forgets_nothing(running) -> None:
    """Both are of one block: its times are looked at again."""
    messages = await given(running, *map(str.encode, "12345"), invisibleTime=10 * INVISIBLE_MS)
    kept = [item(each) for each in messages[1:]]
    assert await merge(running, *kept, item(messages[0], running.clock.now_ms() + 1, 10)) == ResponseCode.SUCCESS
    await expire(running)
    assert [message.body for message in await pop(running.connect())] == [b"1"]


async def test_what_the_log_knows_better_is_left_out(running) -> None:
    lost, kept = await given(running, b"1", b"2")
    group, topic, index, offset, since, length, *_now = item(kept)
    strange = [
        (group, topic, index, offset, since + 1, length, 0, 0), (group, topic, index, offset + 9, since, length, 5, 5),
        (group, topic, index + 99, offset, since, length, 0, 0), (group, topic, -1, offset, since, length, 0, 0),
        (group, "none", index, offset, since, length, 0, 0), ("none", topic, index, offset, since, length, 0, 0),
        (group, topic, index, -1, since, length, 0, 0),
    ]  # fmt: skip
    assert await merge(running, *strange) == ResponseCode.SUCCESS
    assert left_out(running) == len(strange)
    await expire(running)
    assert await merge(running, item(lost, running.clock.now_ms(), 5)) == ResponseCode.SUCCESS
    assert left_out(running) == len(strange) + 1, "it was revived"
    assert len(await pop(running.connect())) == 2


async def test_a_full_queue_has_room_again(limited) -> None:
    messages = await given(limited, b"1", b"2", b"3")
    assert len(messages) == 2
    waiting = asyncio.ensure_future(limited.connect().request(popping(pollTime=20_000)))
    await limited.settle()
    assert await merge(limited, item(messages[0])) == ResponseCode.SUCCESS
    assert b"3" in (await asyncio.wait_for(waiting, 10)).body, "not only when its time is over"


@pytest.mark.parametrize("seed", range(6))
async def test_any_order_and_repetition_ends_alike(running, seed: int) -> None:
    """Also when a broker dies between two parts of it, against a naive model: offset -> when it ends, or done."""
    chance, now_ms = random.Random(seed), running.clock.now_ms()
    messages = await given(running, *(b"%d" % number for number in range(32)))
    kept, model = [], dict[int, int]()
    for message in messages:
        acknowledged, since = chance.random() < 0.5, chance.randint(1, 9)
        model[message.stored.queue_offset] = 0 if acknowledged else since + 3 * INVISIBLE_MS
        kept.append(item(message) if acknowledged else item(message, now_ms + since, 3 * INVISIBLE_MS))
    told = kept + chance.choices(kept, k=20)
    chance.shuffle(told)
    while told:
        part, told = told[:9], told[9:]
        assert await merge(running, *part) == ResponseCode.SUCCESS
        if chance.random() < 0.4:
            await running.restart()
    assert left_out(running) == 0
    assert feature(running).status()["pop_in_flight"] == sum(map(bool, model.values()))
    queue_id = running.broker.topics.table.queue_ids("orders")[0]
    found = feature(running).in_flight
    for offset, end in model.items():
        owned = found.find(GROUP, queue_id, offset)
        assert (0 if owned is None else sum(owned) - now_ms) == end
    await expire(running, 4 * INVISIBLE_MS)
    revived = {message.body for message in await pop(running.connect())}
    assert revived == {b"%d" % offset for offset, end in model.items() if end}


async def merge_given(running, *items: GivenItem) -> int:
    command = Command(RequestCode.MERGE_GIVEN, body=msgspec.json.encode(items))
    return (await running.connect().request(command)).code


def taken(running, offset: int, start: int | None = None, attempt: str | None = None) -> GivenItem:
    """What a replica kept of a message that it gave."""
    looked = offset if start is None else start
    return GROUP, TOPIC, 0, offset, looked, running.clock.now_ms(), INVISIBLE_MS, attempt


async def begun(running, *bodies: bytes) -> None:
    """A queue of which the group was given the first message and acknowledged it."""
    (first,) = await given(running, b"0")
    assert await ack(running.connect(), first) == ResponseCode.SUCCESS
    await send(running.connect(), *bodies, queue=0)


async def test_what_was_given_elsewhere_is_not_given_again_before_its_time(running) -> None:
    await begun(running, b"1", b"2", b"3")
    for _ in range(2):
        assert await merge_given(running, taken(running, 2), taken(running, 1)) == ResponseCode.SUCCESS
        await running.restart()
    assert (left_out(running), feature(running).status()) == (0, {"pop_in_flight": 2})
    assert [message.body for message in await pop(running.connect())] == [b"3"]
    done = (GROUP, TOPIC, 0, 1, running.clock.now_ms(), INVISIBLE_MS, 0, 0)
    assert await merge(running, done) == ResponseCode.SUCCESS, "what became of it comes behind it"
    await expire(running)
    assert {message.body for message in await pop(running.connect())} == {b"2", b"3"}


async def test_what_does_not_join_on_is_given_again(running) -> None:
    await begun(running, b"1", b"2", b"3")
    assert await merge_given(running, taken(running, 1), taken(running, 3)) == ResponseCode.SUCCESS
    assert left_out(running) == 1, "the line of 2 is lost: nobody may have it"
    assert {message.body for message in await pop(running.connect())} == {b"2", b"3"}


async def test_what_did_not_match_is_passed_over(running) -> None:
    await begun(running, b"1", b"2", b"3")
    assert await merge_given(running, taken(running, 3, start=1)) == ResponseCode.SUCCESS
    assert left_out(running) == 0
    assert await pop(running.connect()) == []


async def test_what_the_master_gave_itself_stays_as_it_gave_it(running) -> None:
    await begun(running, b"1", b"2")
    (mine, _other) = await pop(running.connect())
    assert await merge_given(running, (*taken(running, 1)[:5], 7, 7, None)) == ResponseCode.SUCCESS
    assert left_out(running) == 1
    assert await ack(running.connect(), mine) == ResponseCode.SUCCESS


async def test_what_cannot_be_given_is_left_out(running) -> None:
    await begun(running, b"1")
    group, topic, *rest = taken(running, 1)
    strange = [
        (group, topic, 9, *rest[1:]), (group, topic, -1, *rest[1:]), (group, "none", *rest), ("none", topic, *rest),
        taken(running, 99, start=1), taken(running, -1), taken(running, 2**80, start=0),
    ]  # fmt: skip
    assert await merge_given(running, *strange) == ResponseCode.SUCCESS
    assert left_out(running) == len(strange)
    assert [message.body for message in await pop(running.connect())] == [b"1"]


async def test_what_a_group_has_in_order_is_not_mixed(running) -> None:
    await begun(running, b"1", b"2")
    assert [message.body for message in await pop(running.connect(), order="true", maxMsgNums=1)] == [b"1"]
    assert await merge_given(running, taken(running, 2)) == ResponseCode.SUCCESS
    assert left_out(running) == 1


async def test_what_was_given_in_order_elsewhere_is_had_in_order(running) -> None:
    """Behind what the master gave itself, which is done by what comes next; told twice, over a restart."""
    await begun(running, b"1", b"2", b"3", b"4")
    (mine,) = await pop(running.connect(), order="true", maxMsgNums=1, attemptId="m")
    for _ in range(2):
        told = taken(running, 3, attempt="b"), taken(running, 2, attempt="a")
        assert await merge_given(running, *told) == ResponseCode.SUCCESS
        await running.restart()
    done = [(GROUP, TOPIC, 0, 2, running.clock.now_ms(), INVISIBLE_MS, 0, 0), item(mine)]
    assert await merge(running, *done) == ResponseCode.SUCCESS
    assert (left_out(running), feature(running).status()) == (0, {"pop_in_flight": 1})
    assert await pop(running.connect(), order="true") == []
    again = await pop(running.connect(), order="true", attemptId="b")
    assert [message.body for message in again] == [b"3"], "its answer was lost"
    assert await ack(running.connect(), again[0]) == ResponseCode.SUCCESS
    assert [message.body for message in await pop(running.connect(), order="true")] == [b"4"]


async def test_an_attempt_with_too_long_a_name_is_refused(running) -> None:
    await begun(running, b"1")
    command = msgspec.json.encode([taken(running, 1, attempt="\u00e4" * 128)])
    reply = await running.connect().request(Command(RequestCode.MERGE_GIVEN, body=command))
    assert "256 bytes" in (reply.remark or "")
    assert feature(running).status() == {"pop_in_flight": 0}


async def test_a_group_that_pulls_by_now_keeps_its_offset(running) -> None:
    await begun(running, b"1")
    await set_mode(running.connect(), "PULL")
    assert await merge_given(running, taken(running, 1)) == ResponseCode.SUCCESS
    assert (left_out(running), feature(running).status()) == (1, {"pop_in_flight": 0})


async def test_a_master_that_does_not_know_all_yet_is_asked_again(running) -> None:
    (message,) = await given(running, b"1")
    identity, started = running.broker.tools.identity, running.broker.tools.identity.started_position
    identity.started_position = running.store.end_position + 1
    assert await merge(running, item(message)) == ResponseCode.SYSTEM_BUSY
    identity.started_position = started
    assert await merge(running, item(message)) == ResponseCode.SUCCESS


@pytest.mark.parametrize("body", [b"", b"{}", b'[["g","t",0,0,1,1,0]]', b'[["g","t",0,0,-1,1,0,0]]',
                                  b'[["g","t",0,0,1,1,1,4294967296]]'])  # fmt: skip
def test_malformed_bodies_are_named(body: bytes) -> None:
    with pytest.raises(RemoteViolation):
        merged_items(body, Item)


@pytest.mark.parametrize("body", [b'[["g","t",0,0,0,0,1,null]]', b'[["g","t",0,0,0,1,1]]',
                                  b'[["g","t",0,0,"0",1,1,null]]', b'[["g","t",0,0,0,1,1,7]]',
                                  b'[["g","t",0,0,0,1,4294967296,null]]'])  # fmt: skip
def test_malformed_messages_are_named(body: bytes) -> None:
    with pytest.raises(RemoteViolation):
        merged_items(body, GivenItem)


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[BrokerBench]:
    """A master of a group where a replica may have stood in."""
    replication = ReplicationConfig(enabled=True, acting_master=True)
    bench = BrokerBench(tmp_path / "held", ManualClock(), replication=replication)
    yield bench
    bench.store.close()


async def test_a_new_master_waits_for_what_it_is_told(held) -> None:
    held.clock.advance_ms(HOLD_MS)
    acknowledged, lost = await given(held, b"1", b"2")
    held.clock.advance_ms(INVISIBLE_MS)
    await held.restart()
    await send(held.connect(), b"3", queue=0)
    await expire(held, HOLD_MS - 1)
    assert await pop(held.connect()) == [], "nothing is given or revived yet"
    assert await merge(held, item(acknowledged)) == ResponseCode.SUCCESS
    await expire(held, 1)
    assert {message.body for message in await pop(held.connect())} == {lost.body, b"3"}


async def test_pops_that_wait_get_what_there_is_once_nothing_is_held(held) -> None:
    feature(held).start()
    await send(held.connect(), b"1")
    waiting = asyncio.ensure_future(held.connect().request(popping(pollTime=10_000)))
    await held.settle()
    held.clock.advance_ms(HOLD_MS - 5)
    await held.settle()
    assert not waiting.done()
    held.clock.advance_ms(5)
    feature(held).stop()
    feature(held).start()
    assert b"1" in (await waiting).body
    feature(held).stop()
