"""Messages in order at a replica that stands in: none behind one that is in flight, here or at the next master."""

from __future__ import annotations

import random

import pytest

from broker.acting import ordered as ordered_module
from broker.acting.journal import FILE_NAME
from broker.acting.kinds import GIVEN, POPS
from broker.groups.groups import group_offset_key, offset_change, offset_in
from broker.pop.check_points import queue_key
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from broker.topics.topics import TopicSettings
from remoting.protocol.frames.codes import ResponseCode
from tests.unit.broker.acting.test_deliveries import Replica, replica  # noqa: F401
from tests.unit.broker.acting.test_locks import Peer
from tests.unit.broker.acting.test_pops import CHANGE, Behind
from tests.unit.broker.acting.test_replica import until
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
)
from tests.unit.broker.pop.test_merging import left_out


async def take(replica: Replica, count: int = 32, **fields: object) -> list[Message]:  # noqa: F811
    return await replica.pop(order="true", maxMsgNums=count, **fields)


async def bodies(replica: Replica, count: int = 32, **fields: object) -> list[bytes]:  # noqa: F811
    return [message.body for message in await take(replica, count, **fields)]


async def at_the_master(replica: Replica, count: int = 32, **fields: object) -> list[bytes]:  # noqa: F811
    given = await pop(replica.running.connect(), order="true", maxMsgNums=count, **fields)
    return [message.body for message in given]


async def done(replica: Replica, *messages: Message) -> None:  # noqa: F811
    for message in messages:
        assert (await replica.ask(message.command())).code == ResponseCode.SUCCESS


async def test_nothing_is_given_behind_what_is_in_flight(replica: Replica) -> None:  # noqa: F811
    """Here, after a restart, and at the next master, which goes on behind it."""
    await replica.begun(b"1", b"2", b"3", b"4")
    first, second = await take(replica, 2)
    assert await bodies(replica) == []
    await done(replica, first)
    replica.again()
    assert await bodies(replica) == []
    await done(replica, second)
    (third,) = await take(replica, 1)
    assert third.body == b"3"
    await replica.hand_over()
    assert left_out(replica.running) == 0
    assert await at_the_master(replica) == []
    assert await ack(replica.running.connect(), third) == ResponseCode.SUCCESS
    assert await at_the_master(replica) == [b"4"]


async def test_what_is_over_is_given_again_before_anything_else(replica: Replica) -> None:  # noqa: F811
    await replica.begun(b"1", b"2", b"3")
    first, late = await take(replica, 2)
    await done(replica, first)
    replica.running.clock.advance_ms(INVISIBLE_MS - 1)
    assert await bodies(replica) == []
    replica.running.clock.advance_ms(1)
    (again,) = await take(replica)
    assert (again.body, await bodies(replica)) == (b"2", [])
    assert await replica.refusal(late.command()) == ResponseCode.NO_MESSAGE, "the handle is a former one"
    await replica.hand_over()
    assert left_out(replica.running) == 0
    assert await at_the_master(replica) == []
    assert await ack(replica.running.connect(), again) == ResponseCode.SUCCESS
    assert await at_the_master(replica) == [b"3"]


async def test_the_same_attempt_gets_the_same(replica: Replica) -> None:  # noqa: F811
    """From the first message on, in a queue that comes before others; how often it had them is said."""
    await replica.begun(b"1", b"2", b"3")
    await send(replica.running.connect(), b"other", queue=1)
    assert await bodies(replica, 2, attemptId="a", queueId=0) == [b"1", b"2"]
    for _ in range(3):
        reply = await replica.answer(order="true", maxMsgNums=2, attemptId="a")
        assert reply.body.count(b"other") == 0
        assert (reply.fields["reviveQid"], reply.fields["msgOffsetInfo"]) == ("999", "0 0 1,2")
    assert await bodies(replica, attemptId="b") == [b"other"]
    assert await bodies(replica, attemptId="b") == [b"other"]
    replica.running.clock.advance_ms(INVISIBLE_MS)
    reply = await replica.answer(order="true", maxMsgNums=1, attemptId="c", queueId=0)
    assert reply.fields["orderCountInfo"].split(";")[-1] == "0 0 1"
    await replica.hand_over()
    assert left_out(replica.running) == 0


@pytest.mark.parametrize("is_over", [False, True])
async def test_what_the_master_gave_in_order_comes_first(replica: Replica, is_over: bool) -> None:  # noqa: F811
    first, second, *_ = await replica.given(b"1", b"2", order="true", attemptId="m")
    await send(replica.running.connect(), b"3", queue=0)
    assert await bodies(replica) == []
    await done(replica, first)
    if is_over:
        replica.running.clock.advance_ms(INVISIBLE_MS)
        (second,) = await take(replica)
    else:
        (second,) = await take(replica, attemptId="m")
    assert second.body == b"2"
    assert await bodies(replica) == []
    await done(replica, second)
    (third,) = await take(replica)
    assert third.body == b"3"
    await replica.hand_over()
    assert (left_out(replica.running), feature(replica.running).status()) == (0, {"pop_in_flight": 1})
    await expire(replica.running)
    assert await at_the_master(replica) == [b"3"]


async def test_a_time_that_was_changed_holds_the_queue(replica: Replica) -> None:  # noqa: F811
    await replica.begun(b"1", b"2")
    (first,) = await take(replica, 1)
    await replica.ask(first.command(CHANGE, invisibleTime=3 * INVISIBLE_MS))
    replica.running.clock.advance_ms(2 * INVISIBLE_MS)
    assert await bodies(replica) == []
    replica.running.clock.advance_ms(INVISIBLE_MS + 1)
    assert await bodies(replica, 1) == [b"1"]


@pytest.mark.parametrize("is_lost", [False, True])
async def test_it_goes_on_from_a_batch_that_may_be_lost_again(replica: Replica, is_lost: bool) -> None:  # noqa: F811
    """If it is lost, it is given again with what is behind it, in order."""
    await replica.begun(b"1", b"2", b"3")
    before = replica.store.state.get(state_kinds.GROUP_OFFSET, group_offset_key(GROUP, TOPIC, 0))
    assert await at_the_master(replica, 1) == [b"1"]
    replica.running.clock.advance_ms(INVISIBLE_MS)
    replica.store = Behind(replica.store)
    await done(replica, *await take(replica))
    await done(replica, *await take(replica, 1))
    if is_lost:
        queue_id = replica.running.broker.topics.table.queue_ids(TOPIC)[0]
        assert before is not None
        replica.running.store.append_state(
            [
                StateChange(state_kinds.ORDERED_BATCH, queue_key(GROUP, queue_id), None),
                offset_change(GROUP, TOPIC, 0, offset_in(before[0])),
            ]
        )
    await replica.hand_over()
    assert left_out(replica.running) == is_lost
    assert await at_the_master(replica) == ([b"1", b"2", b"3"] if is_lost else [b"3"])


async def test_an_offset_that_was_set_back_over_a_batch_waits_for_a_master(replica: Replica) -> None:  # noqa: F811
    await replica.given(b"1", b"2", order="true")
    replica.running.broker.groups.offsets.commit([(GROUP, TOPIC, 0, 1)])
    replica.running.clock.advance_ms(INVISIBLE_MS)
    assert await bodies(replica) == []


async def test_a_queue_is_in_order_or_not(replica: Replica) -> None:  # noqa: F811
    """What came first decides, also when all of it is done."""
    await replica.begun(b"1", b"2")
    await send(replica.running.connect(), b"3", b"4", queue=1)
    await done(replica, *await take(replica, 1, queueId=0))
    await done(replica, *await replica.pop(maxMsgNums=1, queueId=1))
    assert await replica.bodies(queueId=0) == []
    assert await bodies(replica, queueId=1) == []
    assert (await bodies(replica), await replica.bodies()) == ([b"2"], [b"4"])
    await replica.hand_over()
    assert left_out(replica.running) == 0


async def test_what_the_master_gave_without_order_waits_for_it(replica: Replica) -> None:  # noqa: F811
    await replica.given(b"1", invisibleTime=9 * INVISIBLE_MS)
    await send(replica.running.connect(), b"2", queue=0)
    assert await bodies(replica) == []


async def test_who_waits_gets_what_comes_next(replica: Replica) -> None:  # noqa: F811
    """When the message before is done, and when its time is over."""
    await replica.begun(b"1", b"2")
    (first,) = await take(replica, 1)
    peers = Peer(), Peer()
    replica.deliveries.pop(peers[0], popping(order="true", maxMsgNums=1, pollTime=60_000))
    assert not peers[0].answers
    await done(replica, first)
    await until(lambda: peers[0].answers)
    assert b"2" in peers[0].answers[0].body
    replica.deliveries.pop(peers[1], popping(order="true", maxMsgNums=1, pollTime=60_000))
    replica.deliveries.maintain()
    assert not peers[1].answers
    replica.running.clock.advance_ms(INVISIBLE_MS)
    replica.deliveries.maintain()
    await until(lambda: peers[1].answers)
    assert b"2" in peers[1].answers[0].body


async def test_groups_that_wait_take_no_memory(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    await replica.begun(b"1")
    monkeypatch.setattr(ordered_module, "ENDS_MAX", 3)
    for number in range(9):
        assert len(await take(replica, consumerGroup=f"g{number}")) == 2
        assert await bodies(replica, consumerGroup=f"g{number}") == []
    assert len(replica.deliveries._order._ends) <= 3


async def test_a_clock_that_was_set_back_gives_nothing_twice(replica: Replica) -> None:  # noqa: F811
    """An ownership that began later counts, so another one would be lost."""
    await replica.begun(b"1")
    replica.running.clock.advance_ms(INVISIBLE_MS)
    assert await bodies(replica, attemptId="a") == [b"1"]
    replica.running.clock.set_wall_ms(replica.running.clock.now_ms() - 5)
    assert await bodies(replica, attemptId="a") == []
    replica.running.clock.advance_ms(5)
    assert await bodies(replica, attemptId="a") == [b"1"]


async def test_a_line_that_is_lost_is_given_again(replica: Replica) -> None:  # noqa: F811
    """It holds its queue again, also after another restart."""
    await replica.begun(b"1", b"2", b"3")
    for _ in range(2):
        await done(replica, *await take(replica, 1))
        replica.running.clock.advance_ms(1)
    file = replica.directory / FILE_NAME
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[1:]))
    replica.again()
    assert await bodies(replica, 1) == [b"1"]
    assert (len(replica.journal.of(GIVEN)), len(replica.journal.of(POPS))) == (2, 2)
    replica.again()
    assert await bodies(replica) == []
    replica.running.clock.advance_ms(INVISIBLE_MS)
    (again,) = await take(replica)
    assert again.body == b"1"
    await done(replica, again)
    assert await bodies(replica) == [b"3"], "the second one is done"


@pytest.mark.parametrize("seed", range(4))
async def test_the_next_message_is_always_the_first_that_is_not_done(
    replica: Replica,  # noqa: F811
    seed: int,
) -> None:
    """Restarts, both givers in turn, times that are over: nothing overtakes, and nothing that is done comes again."""
    chance, running = random.Random(seed), replica.running
    everything = [b"%02d" % number for number in range(60)]
    await replica.begun(*everything)
    first = 0
    for _ in range(40):
        if chance.random() < 0.6:
            given, mine = await take(replica, chance.randint(1, 4)), True
        else:
            await replica.hand_over()
            assert left_out(running) == 0
            given, mine = await pop(running.connect(), order="true", maxMsgNums=chance.randint(1, 4)), False
        assert [message.body for message in given] == everything[first : first + len(given)]
        for message in given:
            if chance.random() < 0.25:
                break
            if mine:
                assert (await replica.ask(message.command())).code == ResponseCode.SUCCESS
            else:
                assert await ack(running.connect(), message) == ResponseCode.SUCCESS
            first += 1
        if chance.random() < 0.5:
            await expire(running)
        if chance.random() < 0.3:
            replica.again()
    assert first > 10


async def test_a_topic_that_cannot_be_read_is_refused(replica: Replica) -> None:  # noqa: F811
    await replica.begun(b"1")
    replica.running.broker.topics.table.put(TopicSettings(name=TOPIC, permission=2))
    assert (await replica.pop_refused(order="true")).code == ResponseCode.NO_PERMISSION
